#include <torch/version.h>
#include <base/entries.hpp>
#include <base/files.hpp>
#include <base/log.hpp>
#include <checkpoint/committed.hpp>
#include <identity/same_run.hpp>
#include <nlohmann/json.hpp>
#include <recipe/load.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <sstream>
#include <utility>

namespace trainer::identity {
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
                                        "validation.every",
                                        "validation.timesteps",
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

/// Whether the two lists of adapter.targets differ in their order alone. The host attaches an
/// adapter to the layers in the model's order, whatever the order of the patterns.
bool only_reordered(const recipe::Recipe& before, const recipe::Recipe& now) {
  const auto patterns = [](const recipe::Recipe& recipe) {
    const auto& values = recipe.adapter->options.values();
    const auto it = values.find("targets");
    std::vector<std::string> list;
    if (it != values.end() && it->second.get_if<Array>() != nullptr)
      list = recipe.adapter->options.list<std::string>("targets");
    std::sort(list.begin(), list.end());
    return list;
  };
  if (!before.adapter || !now.adapter || before.adapter->kind != now.adapter->kind) return false;
  const std::vector<std::string> list = patterns(now);
  return !list.empty() && patterns(before) == list;
}

std::string sources_text(const recipe::Recipe& recipe) {
  return std::to_string(recipe.data.size()) + (recipe.data.size() == 1 ? " source" : " sources");
}

/// Another number of [[data]] sources is one difference, which no override can set back, not one for each of their
/// keys.
void join_sources(const recipe::Recipe& before, const recipe::Recipe& now, std::vector<recipe::Difference>& changes) {
  if (before.data.size() == now.data.size()) return;
  const std::size_t common = std::min(before.data.size(), now.data.size());
  std::erase_if(changes, [&](const recipe::Difference& one) {
    return one.key.starts_with("data.") && std::strtoull(one.key.c_str() + 5, nullptr, 10) >= common;
  });
  changes.push_back({"data", sources_text(before), sources_text(now)});
}

/// The differences that change what is trained.
std::vector<recipe::Difference> changes_of_training(const recipe::Recipe& before, const recipe::Recipe& now) {
  std::vector<recipe::Difference> changes = recipe::differences(before, now);
  join_sources(before, now, changes);
  std::erase_if(changes, [&](const recipe::Difference& one) {
    return harmless(one.key) || (one.key == "run.steps" && now.optimizer.schedule == "constant") ||
           (one.key == "adapter.targets" && only_reordered(before, now));
  });
  return changes;
}

/// Whether a checkpoint made with one value has not the tensors that a run with the other trains.
bool decides_tensors(const recipe::Difference& one, const recipe::Recipe& now) {
  static constexpr std::array kKeys{"model.kind", "adapter.kind", "adapter.rank", "adapter.targets", "adapter.dtype"};
  if (std::find(kKeys.begin(), kKeys.end(), one.key) != kKeys.end()) return true;
  if (one.key == "model.dtype") return !now.adapter;  // its weights are what is trained
  const auto on = [](const std::string& text) { return std::strtod(text.c_str(), nullptr) != 0; };
  return one.key == "train.ema.decay" && on(one.first) != on(one.second);
}

std::string row_of(const recipe::Difference& one, bool of_checkpoint) {
  return "\n  " + one.key + (of_checkpoint ? ": checkpoint " : ": then ") + one.first + ", recipe " + one.second;
}

}  // namespace

std::string run_id_of(const fs::path& folder) {
  if (const std::optional<std::string> id = checkpoint::stored_run_id(folder)) return *id;
  const fs::path file = folder / "run.json";
  const std::string id = new_run_id();
  write_file_atomically(
      file,
      nlohmann::ordered_json{{"run_id", id}, {"trainer", TRAINER_VERSION}, {"torch", TORCH_VERSION}}.dump(1) + "\n");
  return id;
}

bool names_checkpoint(const std::string& resume) {
  return resume != "auto" && resume != "never" && resume != "required";
}

void require_named_checkpoint(const std::string& resume) {
  if (!names_checkpoint(resume)) return;
  if (!fs::is_directory(resume))
    throw Error(
        ExitCode::not_found,
        "--resume " + resume + ": no such checkpoint folder; give auto, never, required or a checkpoint folder");
  if (type_of(fs::path(resume) / checkpoint::kManifestName) == fs::file_type::not_found)
    throw Error(ExitCode::not_found, "--resume " + resume + ": this folder is no checkpoint (it has no " +
                                         checkpoint::kManifestName + "); name one as RUN/ckpt/step-0000000250");
}

std::string later_result(const fs::path& folder, int64_t step_of_checkpoint) {
  int64_t newest = step_of_checkpoint;
  fs::path file;
  for (const char* kind : {"lora", "model"})
    for (const std::string& name : names_in(folder / kind)) {
      const fs::path path = folder / kind / name;
      const std::string stem = path.stem().string(), digits = stem.substr(stem.rfind('-') + 1);
      int64_t step = 0;
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
      const bool whole = error == std::errc() && end == digits.data() + digits.size();
      if (path.extension() == ".safetensors" && whole && step > newest) newest = step, file = path;
    }
  if (file.empty()) return {};
  return "the newest whole checkpoint is of step " + std::to_string(step_of_checkpoint) + ", but " + file.string() +
         " is a result of step " + std::to_string(newest) + ": what was trained in between is trained again";
}

void require_resumable(const std::string& resume, const fs::path& folder, const std::vector<int64_t>& steps) {
  if (resume == "never" && !steps.empty())
    throw Error(ExitCode::locked, folder.string() +
                                      ": holds checkpoints of an earlier run; --resume never needs a "
                                      "folder without (choose another run.output, or --resume auto)");
  if (resume != "required" || !steps.empty()) return;
  checkpoint::require_committed(folder, steps);  // says more
  throw Error(ExitCode::not_found, folder.string() + ": --resume required, but there is no checkpoint");
}

void require_same_recipe(const recipe::Recipe& before, const recipe::Recipe& now, const fs::path& folder,
                         const std::string& what, const std::string& resume_with) {
  std::string changed, fixed;
  const bool of_checkpoint = what == checkpoint::kTheCheckpoint;
  for (const recipe::Difference& one : changes_of_training(before, now)) {
    changed += row_of(one, of_checkpoint);
    if (of_checkpoint && decides_tensors(one, now)) fixed += row_of(one, of_checkpoint);
  }
  if (changed.empty()) return;
  if (!fixed.empty() && resume_with == "recipe")
    throw Error(ExitCode::bad_recipe,
                "--resume-with recipe: " + what + " in " + folder.string() +
                    " has not the tensors that this recipe trains, because of" + fixed +
                    "\n  Set these keys back, or choose another run.output to start anew" +
                    (now.adapter ? " (from what is trained: adapter.init = \"file\" with the exported LoRA)." : "."));
  if (of_checkpoint && resume_with == "recipe")
    return log_warning("the run goes on as the recipe says, not as " + what + " in " + folder.string() +
                       " was trained:" + changed);
  std::string advice =
      ", or choose another run.output to start anew (--resume never starts anew here: it cuts the log "
      "off).";
  if (of_checkpoint)
    advice = std::string(" to go on exactly") +
             (before.data.size() == now.data.size() ? " (--resume-with checkpoint does)" : "") +
             (fixed.empty() ? ", go on as the recipe says (--resume-with recipe)" : "") +
             ", or choose another run.output to start anew.";
  throw Error(ExitCode::bad_recipe, "the recipe differs from the one that made " + what + " in " + folder.string() +
                                        ":" + changed + "\n  Set these keys back" + advice);
}

std::vector<std::string> overrides_to_checkpoint(const recipe::Recipe& now, const plugin::Found& found,
                                                 const std::string& resume) {
  std::optional<std::string> text;
  if (names_checkpoint(resume)) {
    if (fs::is_directory(resume)) text = checkpoint::read_progress(checkpoint::load(resume)).recipe;
  } else if (const auto before = checkpoint::recipe_before(now.run.output, now.checkpoint.fallback);
             resume != "never" && before && before->what == checkpoint::kTheCheckpoint) {
    text = before->recipe;
  }
  std::vector<std::string> overrides;
  if (!text) return overrides;
  const recipe::Recipe before = parse_recipe(*text, found);
  if (before.data.size() != now.data.size())
    throw Error(ExitCode::bad_recipe,
                "--resume-with checkpoint: the checkpoint was trained on " + sources_text(before) +
                    " of [[data]], the recipe has " + sources_text(now) +
                    ", and this option sets keys back, not how many sources there are: set them back in the recipe, "
                    "or choose another run.output to start anew");
  for (const auto& [key, first, second] : changes_of_training(before, now))
    if (!first.empty()) overrides.push_back(key + "=" + first);
  return overrides;
}

std::string gone_on_as_checkpoint(const std::vector<std::string>& overrides) {
  std::string text = "the run goes on as the checkpoint was trained, not as the recipe says:";
  for (const std::string& one : overrides) text += "\n  " + one;
  return text;
}

recipe::Recipe parse_recipe(const std::string& text, const plugin::Found& found) {
  try {
    return recipe::load_stored(text, "recipe.toml", plugin::schemas(found));
  } catch (const Error& error) {
    throw error.context("the recipe that an earlier run stored");
  }
}

namespace {

/// "flux2.so 0123abcd, split.so ..." -> hashes by name.
std::map<std::string, std::string> hashes_in(const std::string& plugins) {
  std::map<std::string, std::string> hashes;
  std::istringstream in(plugins);
  for (std::string name, hash; in >> name >> hash;) hashes[name] = hash.substr(0, hash.find(','));
  return hashes;
}

/// Whether one that both opened is another build. What caches everything opens no encoder, what draws needs one: which
/// are open says nothing.
bool other_builds(const std::string& before, const std::string& now) {
  const std::map<std::string, std::string> old = hashes_in(before);
  for (const auto& [name, hash] : hashes_in(now))
    if (const auto it = old.find(name); it != old.end() && it->second != hash) return true;
  return false;
}

}  // namespace

std::string inexact_because(const checkpoint::Loaded& saved, const std::map<std::string, std::string>& fingerprints) {
  static constexpr std::array<std::pair<const char*, const char*>, 9> kSoft{{{"trainer", "version of the program"},
                                                                             {"torch", "LibTorch"},
                                                                             {"processor", "processor"},
                                                                             {"kernels", "level of the fused kernels"},
                                                                             {"products", "level of matrix products"},
                                                                             {"devices", "devices"},
                                                                             {"cuda", "CUDA"},
                                                                             {"processes", "processes"},
                                                                             {"plugins", "plugins"}}};
  std::string text;
  for (const auto& [key, name] : kSoft) {
    const auto then = saved.manifest.fingerprints.find(key), now = fingerprints.find(key);
    if (then == saved.manifest.fingerprints.end() || now == fingerprints.end() || then->second == now->second) continue;
    if (key == std::string("plugins") && !other_builds(then->second, now->second)) continue;
    text += std::string("\n  ") + name + ": checkpoint " + then->second + ", now " + now->second;
  }
  return text;
}

bool require_same_content(const checkpoint::Loaded& saved, const std::map<std::string, std::string>& fingerprints,
                          const recipe::Recipe& recipe, const std::string& resume_with,
                          const EarlierForm& earlier_form) {
  bool all_same = true;
  const auto require_same = [&](const std::string& key, const std::string& now, const std::string& what) {
    const auto it = saved.manifest.fingerprints.find(key);
    if (it == saved.manifest.fingerprints.end() || it->second == now || it->second == earlier_form(key, now)) return;
    if (resume_with == "recipe") {
      log_warning(what + " are not those that the checkpoint " + saved.folder.string() + " was trained on");
      all_same = false;
      return;
    }
    throw Error(ExitCode::bad_recipe, what + " are not those that the checkpoint " + saved.folder.string() +
                                          " was trained on; put them back to go on exactly, take them as they are "
                                          "now (--resume-with recipe), or choose another run.output to start anew");
  };
  for (const auto& [key, value] : fingerprints) {
    if (key == "data") require_same(key, value, "the pictures or captions");
    if (key == "model") require_same(key, value, "the weights in " + recipe.model.path);
    if (key == "model_config") require_same(key, value, "the values of config.json in " + recipe.model.path);
    if (key == "encoders") require_same(key, value, "text encoder, tokenizer or autoencoder");
    if (key == "start") require_same(key, value, "the values of the LoRA in " + recipe.adapter->path);
    if (key == "start_config")
      require_same(key, value, "the values of adapter_config.json beside the LoRA " + recipe.adapter->path);
    if (key == "formats") require_same(key, value, "the weight formats in memory.strategies");
  }
  return all_same;
}

}  // namespace trainer::identity
