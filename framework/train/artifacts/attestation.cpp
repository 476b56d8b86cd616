#include <base/files.hpp>
#include <base/hash.hpp>
#include <nlohmann/json.hpp>
#include <train/artifacts/attestation.hpp>
#include <trainer/sdk/fingerprint.hpp>

#include <algorithm>
#include <set>

namespace trainer::train {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_of(const Strangers& strangers) {
  std::vector<std::string> names;
  for (const plugin::Manifest& manifest : strangers) names.push_back(manifest.schema.kind + " " + manifest.schema.name);
  std::sort(names.begin(), names.end());
  return names;
}

/// Empty without a configuration folder.
fs::path file_of(const Strangers& strangers) {
  const fs::path folder = user_config_folder();
  if (folder.empty()) return {};
  std::vector<std::pair<std::string, std::string>> parts;
  for (const plugin::Manifest& manifest : strangers)
    parts.emplace_back(manifest.schema.kind + " " + manifest.schema.name, xxh128_file(manifest.library));
  std::sort(parts.begin(), parts.end());
  FieldHash hash;
  hash.add(TRAINER_VERSION).add(TRAINER_SDK_FINGERPRINT);
  for (const auto& [name, library] : parts) hash.add(name).add(library);
  return folder / "attestations" / (hash.hex() + ".json");
}

}  // namespace

Strangers strangers_of(const recipe::Recipe& recipe, const plugin::Loader& loader,
                       const std::optional<BudgetPlan>& plan) {
  std::set<std::pair<std::string, std::string>> used{
      {"model", recipe.model.kind}, {"objective", recipe.objective.kind}, {"placement", recipe.placement.kind}};
  if (recipe.adapter) used.emplace("adapter", recipe.adapter->kind);
  for (const std::string& strategy : recipe.memory.strategies) used.emplace("memory", strategy);
  if (plan) {
    used.emplace("memory", strategy_of(plan->format));
    for (const PlannedBlock& block : plan->blocks) used.emplace("memory", strategy_of(block.way));
  }
  Strangers strangers;
  for (const plugin::Manifest& manifest : loader.found().manifests)
    if (used.contains({manifest.schema.kind, manifest.schema.name}) && !plugin::is_own(manifest))
      strangers.push_back(manifest);
  return strangers;
}

fs::path attest(const Strangers& strangers, const std::string& proven) {
  const fs::path file = file_of(strangers);
  if (file.empty())
    throw Error(ExitCode::unavailable, "no folder for the attestation: neither XDG_CONFIG_HOME nor HOME is set");
  make_folders(file.parent_path());
  write_file_atomically(file, nlohmann::ordered_json{{"attestation", 1},
                                                     {"plugins", describe(strangers)},
                                                     {"trainer", TRAINER_VERSION},
                                                     {"torch", TORCH_VERSION},
                                                     {"fingerprint", TRAINER_SDK_FINGERPRINT},
                                                     {"proven", proven}}
                                      .dump(1) +
                                  "\n");
  return file;
}

void withdraw(const Strangers& strangers) {
  std::error_code ignored;
  if (const fs::path file = file_of(strangers); !file.empty()) fs::remove(file, ignored);
}

bool attested(const Strangers& strangers) {
  if (strangers.empty()) return true;
  const fs::path file = file_of(strangers);
  return !file.empty() && fs::exists(file);
}

std::string attestation_warning(const Strangers& strangers, const std::string& recipe) {
  if (attested(strangers)) return {};
  std::string list;
  for (const std::string& name : names_of(strangers)) list += (list.empty() ? "" : ", ") + name;
  const std::string check =
      strangers.size() == 1 ? "`trainer plugins check " + strangers.front().file.string() + "` or " : "";
  return "not proven to train what the plain run trains: " + list + "; " + check + "`trainer prove " + recipe +
         "` proves and attests it";
}

std::vector<std::string> describe(const Strangers& strangers) {
  std::vector<std::string> list;
  for (const plugin::Manifest& manifest : strangers)
    list.push_back(manifest.schema.kind + " " + manifest.schema.name + " " + manifest.version + " (library " +
                   xxh128_file(manifest.library) + ")");
  return list;
}

}  // namespace trainer::train
