/// @file See subjects.hpp.
#include "subjects.hpp"

#include <adapter/lora.hpp>
#include <objective/flow_matching.hpp>
#include <support/parity.hpp>
#include <support/plugins.hpp>
#include <train/prove/conformance_model.hpp>

namespace trainer::equivalence {

plugin::Loader make_loader(std::vector<plugin::SearchFolder> folders) {
  for (plugin::SearchFolder& folder : testing::plugin_folders()) folders.push_back(std::move(folder));
  plugin::Loader made(std::move(folders));
  plugin::register_builtin(made.registry(), objective::register_flow_matching);
  plugin::register_builtin(made.registry(), adapter::register_lora);
  plugin::register_builtin(made.registry(), prove::register_conformance_model);
  return made;
}

plugin::Loader& loader() {
  static plugin::Loader instance = make_loader({});
  return instance;
}

std::vector<std::string> own_strategies() {
  std::vector<std::string> names = prove::memory_strategies(loader());
  std::erase_if(names, [](const std::string& name) { return name == "block_swap" || name == "host_offload"; });
  return names;
}

std::string objective_of(const prove::Subject& subject) {
  return subject.component == "toy_lm" ? "next_token" : "flow_matching";
}

std::vector<prove::Setting> settings_of(const prove::Subject& subject) {
  std::vector<prove::Setting> list = prove::all_settings(subject);
  for (const prove::Setting& setting : prove::all_settings(subject)) {
    if (setting.trained == prove::Trained::all) continue;
    list.push_back(setting);
    list.back().adapter = "lokr";
  }
  for (prove::Setting& setting : list) setting.objective = objective_of(subject);
  return list;
}

const std::vector<prove::Subject>& subjects() {
  static const std::vector<prove::Subject> all = [] {
    for (const char* name : {"toy", "toy_lm", "experts", "flux2"}) loader().require("model", name);
    std::vector<prove::Subject> list;
    for (const char* name : {"conformance", "toy", "toy_lm", "experts"})
      list.push_back(prove::miniature_of(loader(), name));
    for (const auto& directory : test::parity_dirs()) {
      list.push_back(prove::model_in(loader(), "flux2", directory / "model"));
      list.back().name = "flux2 " + directory.filename().string();
    }
    return list;
  }();
  return all;
}

}  // namespace trainer::equivalence
