/// @file Where the language model's tensors stand in a file, and the check that all of them are there. Used by
/// causal_lm.cpp.
#pragma once

#include <string>
#include <trainer/sdk/weights.hpp>
#include <vector>

#include "lm_config.hpp"

namespace trainer::mistral {

/// A tensor of one decoder layer: its name after "layers.N." and its shape.
struct LayerTensor {
  std::string name;
  std::vector<int64_t> shape;
};
[[nodiscard]] std::vector<LayerTensor> layer_tensors(const LmConfig& config);

/// Prefix of "embed_tokens.weight" and "layers.N.": "model." and, for Mistral, the multimodal class's
/// "language_model.model." (older saves) and "model.language_model." (newer ones).
/// Checks the embeddings and the layers below `layers` in one pass; throws one Error (bad_input, MODEL_KEYS) that lists
/// missing tensors with near names, wrong shapes, packed dtypes, and tensors of the layers and embeddings that this
/// code would leave out (biases, scales of quantised files).
[[nodiscard]] std::string find_tensors(const WeightSource& source, const LmConfig& config, int64_t layers);

}  // namespace trainer::mistral
