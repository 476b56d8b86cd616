/// @file The decoder-only transformer of both encoders, run layer by layer over many captions; weights are read from
/// the source when their layer runs and dropped after it. Used by encoder.cpp.
/// Follows transformers 5 models/mistral/modeling_mistral.py and models/qwen3/modeling_qwen3.py with attention "sdpa".
#pragma once

#include <memory>
#include <span>
#include <string>
#include <trainer/sdk/weights.hpp>
#include <vector>

#include "lm_config.hpp"

namespace trainer::mistral {

/// Rows of one caption inside Rows::states: row i stands at position first_position + i of the padded caption and sees
/// the rows j <= i with j < keys. keys = 0: no row sees any other and the attention gives exactly 0.
struct Span {
  int64_t begin = 0, rows = 0;
  int64_t first_position = 0;
  int64_t keys = 0;
};

/// The captions that go through a layer together.
struct Rows {
  at::Tensor states;  ///< [sum of rows, hidden] in the compute dtype: the residual stream
  std::vector<Span> spans;
};

class CausalLm {
 public:
  /// Checks that the embeddings and the layers below `layers` are in `source` (see find_tensors). `positions`: length
  /// of a padded caption.
  CausalLm(const LmConfig& config, std::shared_ptr<WeightSource> source, int64_t layers, int64_t positions,
           at::ScalarType dtype, at::Device device);

  /// Embedding rows of distinct, ascending `ids`: [ids, hidden]. Reads these rows only. Throws Error (bad_input) for an
  /// id outside the vocabulary.
  [[nodiscard]] at::Tensor embeddings(std::span<const int64_t> ids) const;

  /// Replaces the states of all `groups` by those after decoder layer `layer`. Reads the layer's weights once.
  void run_layer(int64_t layer, std::span<Rows> groups) const;

 private:
  struct Layer;
  [[nodiscard]] Layer read_layer(int64_t layer) const;
  [[nodiscard]] at::Tensor attention(const Layer& layer, const at::Tensor& x, const std::vector<Span>& spans) const;
  [[nodiscard]] at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const Span& span) const;
  [[nodiscard]] at::Tensor rotate(const at::Tensor& x, const std::vector<Span>& spans) const;

  LmConfig config_;
  std::shared_ptr<WeightSource> source_;
  std::string prefix_;
  at::ScalarType dtype_;
  at::Device device_;
  at::Tensor cos_, sin_;  ///< [positions, 1, head_dim] in the compute dtype
};

}  // namespace trainer::mistral
