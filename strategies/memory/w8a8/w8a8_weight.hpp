/// @file A frozen weight in 8 bits that is multiplied in 8 bits.
#pragma once

#include <trainer/sdk/layers.hpp>

#include <memory>

#include "product.hpp"

namespace trainer::w8a8 {

/// With W[o][i] = q[o][i] s[o]:
///   y[m][o]  = (x8 q^T)[m][o] sx[m] s[o]          x in 8 bits row by row
///   dx[m][i] = (g8 q)[m][i] sg[m]                 g[m][o] s[o] in 8 bits row by row
/// The gradient's product sums over output channels, so their scales go into the gradient before it is made into 8
/// bits. Sums are rounded to the dtype of x or g once. A weight whose scales are finer than a channel (a file's own
/// blocks), or of a shape that the products do not take, is expanded and multiplied in the dtype of x or g.
class W8A8Weight final : public FrozenWeight {
 public:
  explicit W8A8Weight(eight_bits::Packed packed, std::shared_ptr<Shared> shared = std::make_shared<Shared>());
  [[nodiscard]] at::Tensor matmul(const at::Tensor& x) const override;
  [[nodiscard]] at::Tensor grad_input(const at::Tensor& g) const override;
  [[nodiscard]] at::Tensor dense(at::ScalarType dtype) const override;
  /// Of values and scales.
  [[nodiscard]] int64_t bytes() const override;
  void to(at::Device device) override;
  [[nodiscard]] std::vector<at::Tensor*> tensors() override { return {&packed_.values, &packed_.scale}; }
  /// Whether products are in 8 bits.
  [[nodiscard]] bool in_8_bits() const { return in_8_bits_; }

 private:
  /// Scales of all output channels [out].
  [[nodiscard]] at::Tensor channels() const;

  eight_bits::Packed packed_;
  std::shared_ptr<Shared> shared_;
  Code code_;
  bool in_8_bits_;
};

}  // namespace trainer::w8a8
