#include <torch/version.h>
#include <base/files.hpp>
#include <nlohmann/json.hpp>
#include <recipe/load.hpp>
#include <train/artifacts/same_run.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <random>
#include <utility>

namespace trainer::train {
namespace {

namespace fs = std::filesystem;

/// Names this run in its files; has no influence on training.
std::string new_run_id() {
  std::random_device device;
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%08x%08x", device(), device());
  return text.data();
}

/// Keys that may differ between a checkpoint and the recipe that goes on from it: they do not change what is trained.
/// Paths neither: what lies there is compared by content.
bool harmless(const std::string& key) {
  static constexpr std::array kPaths{".path", ".tokenizer", ".folder", ".metadata"};
  if (std::any_of(kPaths.begin(), kPaths.end(), [&](const char* end) { return key.ends_with(end); })) return true;
  static constexpr std::array kPrefixes{"sample",
                                        "checkpoint",
                                        "metrics",
                                        "distributed",
                                        "cache",
                                        "run.name",
                                        "run.output",
                                        "memory",  // what packs weights is compared as "formats"
                                        "optimizer.fused_backward",
                                        "placement",
                                        "train.threads",
                                        "text_encoder.device",
                                        "autoencoder.device"};
  return std::any_of(kPrefixes.begin(), kPrefixes.end(), [&](const char* prefix) { return key.starts_with(prefix); });
}

}  // namespace

TemporaryFile::TemporaryFile(fs::path path, std::string_view content) : path_(std::move(path)) {
  write_file_atomically(path_, content);
}

TemporaryFile::~TemporaryFile() {
  std::error_code ignored;
  fs::remove(path_, ignored);
}

std::string run_id_of(const fs::path& folder) {
  const fs::path file = folder / "run.json";
  if (fs::exists(file)) {
    const auto json = nlohmann::json::parse(read_file(file, 1 << 20, "run.json"), nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("run_id") && json["run_id"].is_string()) return json["run_id"];
    throw Error(ExitCode::bad_input, file.string() + ": damaged; delete this file to let the run go on with a new id");
  }
  const std::string id = new_run_id();
  write_file_atomically(
      file,
      nlohmann::ordered_json{{"run_id", id}, {"trainer", TRAINER_VERSION}, {"torch", TORCH_VERSION}}.dump(1) + "\n");
  return id;
}

void require_same_recipe(const recipe::Recipe& before, const recipe::Recipe& now, const fs::path& folder) {
  std::string changed;
  for (const auto& [key, first, second] : recipe::differences(before, now)) {
    const bool longer = key == "run.steps" && now.optimizer.schedule == "constant";
    if (!harmless(key) && !longer) changed += "\n  " + key + ": checkpoint " + first + ", recipe " + second;
  }
  if (!changed.empty())
    throw Error(ExitCode::bad_recipe,
                "the recipe differs from the one that made the checkpoint in " + folder.string() + ":" + changed +
                    "\n  Set these keys back to go on exactly, or choose another run.output to start anew.");
}

void require_same_content(const checkpoint::Loaded& saved, const std::map<std::string, std::string>& fingerprints,
                          const recipe::Recipe& recipe) {
  const auto require_same = [&](const std::string& key, const std::string& now, const std::string& what) {
    const auto it = saved.manifest.fingerprints.find(key);
    if (it != saved.manifest.fingerprints.end() && it->second != now)
      throw Error(ExitCode::bad_recipe, what + " are not those that the checkpoint " + saved.folder.string() +
                                            " was trained on; put them back to go on exactly, or choose another "
                                            "run.output to start anew");
  };
  for (const auto& [key, value] : fingerprints) {
    if (key == "data") require_same(key, value, "the pictures or captions");
    if (key == "model") require_same(key, value, "the weights in " + recipe.model.path);
    if (key == "encoders") require_same(key, value, "text encoder, tokenizer or autoencoder");
    if (key == "start") require_same(key, value, "the values of the LoRA in " + recipe.adapter->path);
    if (key == "formats") require_same(key, value, "the weight formats in memory.strategies");
  }
}

}  // namespace trainer::train
