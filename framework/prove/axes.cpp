#include <prove/axes.hpp>

#include <algorithm>
#include <set>

namespace trainer::prove {
namespace {

/// Whether it comes with the program.
bool is_own(const plugin::Loader& loader, const std::string& kind, const std::string& name) {
  const plugin::Manifest* manifest = plugin::find_manifest(loader.found().manifests, kind, name);
  return manifest != nullptr && plugin::is_own(*manifest);
}

}  // namespace

std::vector<std::string> components(plugin::Loader& loader, const std::string& kind) {
  std::set<std::string> names;
  for (const plugin::Manifest& manifest : loader.found().manifests)
    if (manifest.schema.kind == kind) names.insert(manifest.schema.name);
  const std::string before = kind + " ";
  for (const std::string& registered : loader.registry().names())
    if (registered.starts_with(before)) names.insert(registered.substr(before.size()));
  return {names.begin(), names.end()};
}

std::string objective_beside(const plugin::Loader& loader, const std::string& model) {
  const auto& all = loader.found().manifests;
  const auto own = std::find_if(all.begin(), all.end(), [&](const plugin::Manifest& manifest) {
    return manifest.schema.kind == "model" && manifest.schema.name == model;
  });
  if (own != all.end())
    for (const plugin::Manifest& other : all)
      if (other.schema.kind == "objective" && other.library == own->library) return other.schema.name;
  return "flow_matching";
}

std::vector<Setting> settings_of(plugin::Loader& loader, const Subject& subject) {
  std::vector<std::string> adapters = components(loader, "adapter");
  // The program's own first: tests name settings by their place.
  std::stable_partition(adapters.begin(), adapters.end(),
                        [&](const std::string& name) { return is_own(loader, "adapter", name); });
  std::vector<Setting> list;
  for (const std::string& adapter : adapters)
    for (Setting setting : all_settings(subject)) {
      if (setting.trained == Trained::all && adapter != adapters.front()) continue;  // has no adapter
      setting.adapter = adapter;
      setting.objective = objective_beside(loader, subject.component);
      list.push_back(std::move(setting));
    }
  return list;
}

std::vector<Place> places(plugin::Loader& loader) {
  std::vector<Place> list;
  for (const std::string& placement : components(loader, "placement"))
    for (const int64_t devices : {2, 3}) list.push_back({placement, devices});
  return list;
}

}  // namespace trainer::prove
