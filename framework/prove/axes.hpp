/// @file What the equivalence matrix ranges over: components that are in the registry or that a manifest offers. A
/// plugin that is found is on its axis; nothing is listed by hand.
#pragma once

#include <prove/cells.hpp>

#include <string>
#include <vector>

namespace trainer::prove {

/// Names of all components of a kind, "model", "memory", "placement", "adapter", ..., as in manifests: found or built
/// in. Sorted.
std::vector<std::string> components(plugin::Loader& loader, const std::string& kind);

/// The objective in the model's library, if there is one (it may be no diffusion model), or "flow_matching".
std::string objective_beside(const plugin::Loader& loader, const std::string& model);

/// {fp32, bf16} x what is trained, with every adapter there is x {1, 3} micro-batches, for the model's own objective.
std::vector<Setting> settings_of(plugin::Loader& loader, const Subject& subject);

/// A placement on so many devices.
struct Place {
  std::string placement;
  int64_t devices;
};
/// Every placement on two and on three devices; what it cannot do there it has to refuse.
std::vector<Place> places(plugin::Loader& loader);

}  // namespace trainer::prove
