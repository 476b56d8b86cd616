/// @file See subjects.hpp.
#include "subjects.hpp"

#include <adapter/lora.hpp>
#include <cstdlib>
#include <objective/flow_matching.hpp>
#include <sstream>
#include <support/parity.hpp>
#include <train/prove/conformance_model.hpp>

namespace trainer::equivalence {

plugin::Loader make_loader(std::vector<plugin::SearchFolder> folders) {
  std::istringstream list(std::getenv("TRAINER_TEST_PLUGINS"));
  for (std::string folder; std::getline(list, folder, ':');) folders.push_back({folder, "build tree"});
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

const std::vector<prove::Subject>& subjects() {
  static const std::vector<prove::Subject> all = [] {
    for (const char* name : {"toy", "flux2"}) loader().require("model", name);
    std::vector<prove::Subject> list{prove::miniature_of(loader(), "conformance"),
                                     prove::miniature_of(loader(), "toy")};
    for (const auto& directory : test::parity_dirs()) {
      list.push_back(prove::model_in(loader(), "flux2", directory / "model"));
      list.back().name = "flux2 " + directory.filename().string();
    }
    return list;
  }();
  return all;
}

}  // namespace trainer::equivalence
