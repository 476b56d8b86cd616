#include <recipe/paths.hpp>

#include <trainer/sdk/names.hpp>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

namespace trainer::recipe {
namespace {

namespace fs = std::filesystem;

// A recipe may come from a stranger and its resolved form is stored with results: no other variable is readable.
constexpr std::array kAllowed = {"HOME", "XDG_CACHE_HOME", "TRAINER_DATA", "TRAINER_MODELS"};

std::string value_of(std::string_view name, std::string& problem) {
  for (const char* allowed : kAllowed) {
    if (name != allowed) continue;
    const char* value = std::getenv(allowed);
    if (value != nullptr && *value != '\0') return value;
    problem = "the environment variable " + std::string(name) + " is not set";
    return {};
  }
  problem = "the variable \"" + std::string(name) + "\" may not be used in a recipe, only";
  for (const char* allowed : kAllowed) problem += std::string(allowed == kAllowed[0] ? " " : ", ") + allowed;
  return {};
}

}  // namespace

std::string expand_variables(std::string_view text, std::string& problem) {
  std::string out;
  if (text == "~" || text.starts_with("~/")) {
    out = value_of("HOME", problem);
    text.remove_prefix(1);
  }
  while (problem.empty() && !text.empty()) {
    if (text.starts_with("$${")) {
      out += "${";
      text.remove_prefix(3);
    } else if (text.starts_with("${")) {
      const std::size_t end = text.find('}');
      if (end == std::string_view::npos) {
        problem = "a \"${\" without \"}\" (write \"$${\" for the characters themselves)";
        break;
      }
      out += value_of(text.substr(2, end - 2), problem);
      text.remove_prefix(end + 1);
    } else {
      out += text.front();
      text.remove_prefix(1);
    }
  }
  return problem.empty() ? out : std::string();
}

std::string absolute_path(const std::string& path, const SourcePosition& position, bool from_working_folder) {
  std::error_code error;
  const fs::path working = fs::current_path(error);
  const fs::path base = from_working_folder || position.line == 0 ? working : (working / position.file).parent_path();
  fs::path full = (base / path).lexically_normal();
  if (!full.has_filename() && full.has_relative_path()) full = full.parent_path();
  return full.string();
}

std::string escaped_path(std::string_view path) {
  std::string out;
  for (std::size_t at = 0; at < path.size(); ++at) {
    if (path.substr(at, 2) == "${") out += '$';
    out += path[at];
  }
  return out;
}

std::string missing_path(const std::string& path) {
  constexpr int kLooked = 1000;
  std::error_code error;
  if (fs::exists(path, error)) return {};
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory) {
    return "cannot look at " + path + ": " + error.message();
  }
  const fs::path full(path);
  std::vector<std::string> names;
  fs::directory_iterator entries(full.parent_path(), error);
  for (int i = 0; !error && i < kLooked && entries != fs::directory_iterator(); ++i) {
    names.push_back(entries->path().filename().string());
    entries.increment(error);
  }
  return "no such file or folder: " + path + did_you_mean(full.filename().string(), names);
}

}  // namespace trainer::recipe
