#include <base/entries.hpp>
#include <base/files.hpp>
#include <base/json_depth.hpp>
#include <checkpoint/committed.hpp>
#include <checkpoint/earlier.hpp>
#include <checkpoint/recovery.hpp>
#include <nlohmann/json.hpp>
#include <trainer/sdk/error.hpp>

namespace trainer::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kSmallLimit = std::size_t{1} << 20;

/// A text of a JSON object; nullopt for anything else.
std::optional<std::string> text_in(const std::string& json, const char* key) {
  if (nests_deeply(json)) return {};
  const auto object = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  const auto it = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || it == object.end() || !it->is_string()) return {};
  return it->get<std::string>();
}

/// Throws Error (bad_input) for what is no id. It becomes part of file names.
std::string checked_id(const std::optional<std::string>& id, const fs::path& file) {
  if (!id || id->empty() || id->size() > 64 || id->find_first_not_of("0123456789abcdef") != std::string::npos)
    throw Error(ExitCode::bad_input, file.string() + ": damaged; delete this file to let the run go on with a new id");
  return *id;
}

}  // namespace

std::optional<std::string> stored_run_id(const fs::path& run_folder) {
  const fs::path file = run_folder / "run.json";
  if (type_of(file) == fs::file_type::not_found) return {};
  const std::optional<std::string> noted = text_in(read_file(file, kSmallLimit, "run.json"), "run_id");
  try {
    return checked_id(noted, file);
  } catch (const Error&) {  // with a new id its checkpoints would be another run's
    for (const fs::path& folder : newest_first({run_folder / "ckpt"}))
      if (const std::optional<Manifest> manifest = whole_manifest(folder)) return checked_id(manifest->run_id, file);
    throw;
  }
}

std::optional<std::string> recipe_in(const fs::path& checkpoint) {
  const std::optional<std::string> state = whole_state(checkpoint);
  return state ? text_in(*state, "recipe") : std::nullopt;
}

std::optional<Before> recipe_before(const fs::path& run_folder, const fs::path& fallback) {
  if (const std::vector<fs::path> folders = newest_first(roots_of(run_folder, fallback)); !folders.empty()) {
    for (const fs::path& folder : folders)
      if (auto recipe = recipe_in(folder)) return Before{std::move(*recipe), kTheCheckpoint};
    return {};
  }
  const auto there = [&](const char* name) { return type_of(run_folder / name) != fs::file_type::not_found; };
  const bool logged = size_of(run_folder / "log.jsonl").value_or(0) > 0, made = there("lora") || there("model");
  const fs::path file = run_folder / "recipe.toml";
  if ((!logged && !made) || !size_of(file)) return {};
  return Before{read_file(file, kSmallLimit, "recipe"), "the log and the results"};
}

}  // namespace trainer::checkpoint
