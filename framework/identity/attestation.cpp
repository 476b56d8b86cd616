#include <torch/version.h>
#include <base/files.hpp>
#include <base/hash.hpp>
#include <identity/attestation.hpp>
#include <nlohmann/json.hpp>
#include <recipe/load.hpp>
#include <trainer/sdk/fingerprint.hpp>

#include <algorithm>
#include <array>
#include <set>

namespace trainer::identity {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_of(const Strangers& strangers) {
  std::vector<std::string> names;
  for (const plugin::Manifest& manifest : strangers) names.push_back(manifest.schema.kind + " " + manifest.schema.name);
  std::sort(names.begin(), names.end());
  return names;
}

/// Whether a key of the recipe decides what a proof runs: where things lie and what is done besides training does not.
bool matters(const std::string& key) {
  static constexpr std::array kEnds{".tokenizer", ".device", ".folder", ".metadata"};
  if (std::any_of(kEnds.begin(), kEnds.end(), [&](const char* end) { return key.ends_with(end); })) return false;
  if (key == "text_encoder.path" || key == "placement.simulated" || key.starts_with("autoencoder")) return false;
  static constexpr std::array kStarts{"run.seed",
                                      "model",
                                      "text_encoder",
                                      "data",
                                      "adapter",
                                      "objective",
                                      "memory",
                                      "placement",
                                      "train.batch_size",
                                      "train.micro_batch_size",
                                      "optimizer.fused_backward"};
  return std::any_of(kStarts.begin(), kStarts.end(), [&](const char* start) { return key.starts_with(start); });
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// Empty without a configuration folder.
fs::path file_of(const Strangers& strangers) {
  const fs::path folder = user_config_folder();
  if (folder.empty()) return {};
  std::vector<std::array<std::string, 3>> parts;
  for (const plugin::Manifest& manifest : strangers)
    parts.push_back(
        {manifest.schema.kind + " " + manifest.schema.name, xxh128_file(manifest.library), xxh128_file(manifest.file)});
  std::sort(parts.begin(), parts.end());
  FieldHash hash;
  hash.add(TRAINER_VERSION).add(TRAINER_SDK_FINGERPRINT);
  for (const auto& part : parts)
    for (const std::string& field : part) hash.add(field);
  return folder / "attestations" / (hash.hex() + ".json");
}

/// Beside the attestation of the plugin alone.
fs::path failure_of(const plugin::Manifest& stranger) {
  fs::path file = file_of({stranger});
  return file.empty() ? file : file.replace_extension(".failed.json");
}

void write_note(const fs::path& file, const nlohmann::ordered_json& note) {
  if (file.empty())
    throw Error(ExitCode::unavailable, "no folder for the attestation: neither XDG_CONFIG_HOME nor HOME is set");
  make_folders(file.parent_path());
  write_file_atomically(file, note.dump(1) + "\n");
}

}  // namespace

Strangers strangers_of(const recipe::Recipe& recipe, const plugin::Loader& loader,
                       const std::optional<planner::BudgetPlan>& plan) {
  std::set<std::pair<std::string, std::string>> used{
      {"model", recipe.model.kind}, {"objective", recipe.objective.kind}, {"placement", recipe.placement.kind}};
  if (recipe.adapter) used.emplace("adapter", recipe.adapter->kind);
  for (const std::string& strategy : recipe.memory.strategies) used.emplace("memory", strategy);
  if (plan) {
    used.emplace("memory", planner::strategy_of(plan->format));
    for (const planner::PlannedBlock& block : plan->blocks) used.emplace("memory", planner::strategy_of(block.way));
  }
  Strangers strangers;
  for (const plugin::Manifest& manifest : loader.found().manifests)
    if (used.contains({manifest.schema.kind, manifest.schema.name}) && !plugin::is_own(manifest))
      strangers.push_back(manifest);
  return strangers;
}

fs::path attest(const Strangers& strangers, const std::string& proven) {
  const fs::path file = file_of(strangers);
  write_note(file, {{"attestation", 1},
                    {"plugins", describe(strangers)},
                    {"trainer", TRAINER_VERSION},
                    {"torch", TORCH_VERSION},
                    {"fingerprint", TRAINER_SDK_FINGERPRINT},
                    {"proven", proven}});
  return file;
}

void withdraw(const Strangers& strangers) {
  std::error_code ignored;
  if (const fs::path file = file_of(strangers); !file.empty()) fs::remove(file, ignored);
}

void note_check(const plugin::Manifest& stranger, bool failed) {
  const fs::path file = failure_of(stranger);
  std::error_code ignored;
  if (failed)
    write_note(file, {{"failed_check", 1}, {"plugins", describe({stranger})}, {"trainer", TRAINER_VERSION}});
  else if (!file.empty())
    fs::remove(file, ignored);
}

std::vector<std::string> failed_checks(const Strangers& strangers) {
  Strangers failed;
  for (const plugin::Manifest& manifest : strangers)
    if (const fs::path file = failure_of(manifest); !file.empty() && fs::exists(file)) failed.push_back(manifest);
  return names_of(failed);
}

bool attested(const Strangers& strangers) {
  if (strangers.empty()) return true;
  if (!failed_checks(strangers).empty()) return false;
  const fs::path file = file_of(strangers);
  return !file.empty() && fs::exists(file);
}

std::string attestation_warning(const Strangers& strangers, const std::string& recipe) {
  if (attested(strangers)) return {};
  if (const std::vector<std::string> failed = failed_checks(strangers); !failed.empty())
    return "`trainer plugins check` found wrong: " + joined(failed) +
           "; results are not to be trusted until it passes (" + strangers.front().file.parent_path().string() + ")";
  const std::string list = joined(names_of(strangers));
  const std::string check =
      strangers.size() == 1 ? "`trainer plugins check " + strangers.front().file.string() + "` or " : "";
  return "not proven to train what the plain run trains: " + list + "; " + check + "`trainer prove " + recipe +
         "` proves and attests it";
}

std::vector<std::string> describe(const Strangers& strangers) {
  std::vector<std::string> list;
  for (const plugin::Manifest& manifest : strangers)
    list.push_back(manifest.schema.kind + " " + manifest.schema.name + " " + manifest.version + " (library " +
                   xxh128_file(manifest.library) + ", manifest " + xxh128_file(manifest.file) + ")");
  return list;
}

std::map<std::string, std::string> proof_subject(const recipe::Recipe& recipe, const Strangers& strangers,
                                                 const std::optional<planner::BudgetPlan>& plan) {
  FieldHash keys, ways;
  for (const auto& [key, value] : recipe::flatten(recipe))
    if (matters(key)) keys.add(key).add(value);
  std::string plugins, devices;
  for (const std::string& one : describe(strangers)) plugins += (plugins.empty() ? "" : ", ") + one;
  for (const std::string& device : recipe.placement.devices) devices += (devices.empty() ? "" : ", ") + device;
  if (plan) {
    ways.add(plan->format);
    for (const planner::PlannedBlock& block : plan->blocks) ways.add(block.name).add(block.way);
  }
  return {{"recipe", keys.hex()},
          {"trainer", TRAINER_VERSION},
          {"torch", TORCH_VERSION},
          {"fingerprint", TRAINER_SDK_FINGERPRINT},
          {"plugins", plugins},
          {"device", devices},
          {"plan", plan ? ways.hex() : ""}};
}

}  // namespace trainer::identity
