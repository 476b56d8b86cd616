/// @file The split placement of the build, with changes to the defaults of its manifest.
#pragma once

#include <equivalence/subjects.hpp>
#include <recipe/default_options.hpp>
#include <trainer/sdk/placement.hpp>

#include <memory>

namespace trainer::placement {

inline std::unique_ptr<Placement> split_placement(const Table& changes) {
  plugin::Loader& loader = equivalence::loader();
  loader.require("placement", "split");
  for (const plugin::Manifest& manifest : loader.found().manifests) {
    if (manifest.schema.kind != "placement" || manifest.schema.name != "split") continue;
    Table values = recipe::default_options(manifest.schema).values();
    for (const auto& [key, value] : changes) values[key] = value;
    return loader.registry().placements.at("split").create(Options("placement", std::move(values)));
  }
  return nullptr;
}

}  // namespace trainer::placement
