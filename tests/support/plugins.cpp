/// @file See plugins.hpp.
#include <recipe/default_options.hpp>
#include <support/plugins.hpp>

#include <cstdlib>
#include <sstream>
#include <stdexcept>

namespace trainer::testing {

std::vector<plugin::SearchFolder> plugin_folders() {
  std::vector<plugin::SearchFolder> folders;
  std::istringstream list(std::getenv("TRAINER_TEST_PLUGINS"));
  for (std::string folder; std::getline(list, folder, ':');) folders.push_back({folder, "build tree"});
  return folders;
}

plugin::Loader& built_plugins() {
  static plugin::Loader instance(plugin_folders());
  return instance;
}

Options options_of(const std::string& kind, const std::string& name, const Table& changes) {
  for (const plugin::Manifest& manifest : built_plugins().found().manifests) {
    if (manifest.schema.kind != kind || manifest.schema.name != name) continue;
    Table values = recipe::default_options(manifest.schema).values();
    for (const auto& [key, value] : changes) values.at(key) = value;
    return {name, std::move(values)};
  }
  throw std::runtime_error("no " + kind + " \"" + name + "\" in this build");
}

std::unique_ptr<MemoryStrategy> make_strategy(const std::string& name, const Table& changes) {
  built_plugins().require("memory", name);
  return built_plugins().registry().memory.at(name).create(options_of("memory", name, changes));
}

}  // namespace trainer::testing
