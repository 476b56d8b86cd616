#include <base/files.hpp>
#include <checkpoint/earlier.hpp>
#include <checkpoint/recovery.hpp>
#include <nlohmann/json.hpp>
#include <trainer/sdk/error.hpp>

namespace trainer::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kStateLimit = std::size_t{64} << 20;
constexpr std::size_t kSmallLimit = std::size_t{1} << 20;

bool is_file(const fs::path& file) {
  std::error_code absent;
  return fs::is_regular_file(file, absent);
}

/// A text of a JSON object; nullopt for anything else.
std::optional<std::string> text_in(const std::string& json, const char* key) {
  const auto object = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  const auto it = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || it == object.end() || !it->is_string()) return {};
  return it->get<std::string>();
}

}  // namespace

std::optional<std::string> stored_run_id(const fs::path& run_folder) {
  const fs::path file = run_folder / "run.json";
  std::error_code absent;
  if (!fs::exists(file, absent)) return {};
  std::optional<std::string> id = text_in(read_file(file, kSmallLimit, "run.json"), "run_id");
  // It becomes part of file names.
  if (!id || id->empty() || id->size() > 64 || id->find_first_not_of("0123456789abcdef") != std::string::npos)
    throw Error(ExitCode::bad_input, file.string() + ": damaged; delete this file to let the run go on with a new id");
  return id;
}

std::optional<Before> recipe_before(const fs::path& run_folder) {
  std::error_code absent;
  if (const fs::path root = run_folder / "ckpt"; fs::is_directory(root, absent)) {
    const std::vector<int64_t> steps = steps_in(root);
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
      const fs::path file = root / step_name(*step) / kStateName;
      if (!is_file(file) || fs::file_size(file, absent) > kStateLimit) continue;
      if (auto recipe = text_in(read_file(file, kStateLimit, "state"), "recipe"))
        return Before{std::move(*recipe), kTheCheckpoint};
    }
    if (!steps.empty()) return {};
  }
  const bool logged = is_file(run_folder / "log.jsonl") && fs::file_size(run_folder / "log.jsonl", absent) > 0;
  const bool made = fs::exists(run_folder / "lora", absent) || fs::exists(run_folder / "model", absent);
  const fs::path file = run_folder / "recipe.toml";
  if ((!logged && !made) || !is_file(file)) return {};
  return Before{read_file(file, kSmallLimit, "recipe"), "the log and the results"};
}

}  // namespace trainer::checkpoint
