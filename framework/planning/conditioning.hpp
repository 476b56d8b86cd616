/// @file What text encoder and data will give the model, before anything is encoded: the encoder runs on shapes alone.
#pragma once

#include <assembly/assemble.hpp>

#include <optional>
#include <string>
#include <vector>

namespace trainer::planning {

struct Conditioning {
  std::vector<TensorInfo> tensors;  ///< of one sample: what the model needs and the objective does not make
  std::string note;                 ///< what is a guess; empty: nothing
  /// Rows of the first tensor, 0 without one: tokens of a text.
  [[nodiscard]] int64_t tokens() const {
    return tensors.empty() || tensors.front().shape.empty() ? 0 : tensors.front().shape.front();
  }
};

/// Shapes come from the text encoder; where its files are missing or it cannot run on shapes, from what the model
/// declares, with a guess for the length of a text. nullopt: neither tells. Throws Error (bad_recipe, TEXT_SHAPE) when
/// the encoder gives an input in a shape that the model does not take.
std::optional<Conditioning> foretell_conditioning(assembly::Assembly& assembly, const Model& model,
                                                  const Objective& objective);

}  // namespace trainer::planning
