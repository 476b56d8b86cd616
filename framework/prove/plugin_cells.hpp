/// @file Which cells of the equivalence matrix prove a plugin, by its kind: what `trainer plugins check` runs.
#pragma once

#include <prove/cells.hpp>

#include <string>
#include <vector>

namespace trainer::prove {

struct PluginCells {
  std::vector<Row> rows;
  std::vector<std::string> facts;  ///< sentences beside the table, e.g. "the adapter changes nothing at its start"
  [[nodiscard]] bool passed() const;
};

/// Runs the cells of one component that is in the registry; `loader` holds the built-in components and the conformance
/// model. `model_folder`: weights for a model without a miniature, or "".
/// memory: every subset of the program's strategies with it, and steps that die. model: every subset on it, and steps
/// that die. adapter, objective: every subset with it. placement: on `devices` against the first of them; throws Error
/// (unavailable) when these are not two or more of one kind. Encoders have no cells.
PluginCells check_plugin(plugin::Loader& loader, const plugin::Manifest& manifest, const std::string& model_folder,
                         const std::vector<at::Device>& devices = {at::kCPU});

}  // namespace trainer::prove
