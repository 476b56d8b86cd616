/// @file An adapter whose part of a layer is a product of two narrow matrices, as LoRA's. A layer with a frozen weight
/// computes both in one node of autograd (low_rank_linear, ops/fused.hpp), which keeps and allocates less than the two
/// after one another.
#pragma once

#include <trainer/sdk/layers.hpp>

namespace trainer {

class TRAINER_API LowRankAdapter : public LinearAdapter {
 public:
  /// scale (x A^T) B^T is added to the layer's output. A [r, in] and B [out, r] as a forward reads them
  /// (Parameter::get), fp32 beside fp32 and bf16 data.
  struct Pair {
    at::Tensor a, b;
    double scale;
  };
  [[nodiscard]] virtual Pair pair() const = 0;
  /// The same on an output that is there already: that of a trained weight, or of a layer with a bias.
  [[nodiscard]] at::Tensor apply(const at::Tensor& x, const at::Tensor& y) const override;
  ~LowRankAdapter() override;
};

}  // namespace trainer
