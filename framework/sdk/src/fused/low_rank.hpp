/// @file The products of a low-rank adapter, of fused kernels or of plain operators, for the nodes that use them.
/// Private to this folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

namespace trainer::fused {

/// Whether the fused kernels take x [M, in] with A and B.
bool takes_low_rank(const at::Tensor& x, const at::Tensor& a, const at::Tensor& b);

struct Products {
  bool fused;
  /// low [rows, rank] = factor x weight^T, in the weight's dtype; x [rows, width], weight [rank, width].
  [[nodiscard]] at::Tensor down(const at::Tensor& x, const at::Tensor& weight, double factor) const;
  /// base + factor low weight in `dtype`, or without a base; base [rows, width], weight [rank, width].
  [[nodiscard]] at::Tensor up(const at::Tensor& low, const at::Tensor& weight, const at::Tensor& base, double factor,
                              at::ScalarType dtype) const;
  /// grad_weight [rank, width] = factor low^T x.
  [[nodiscard]] at::Tensor outer(const at::Tensor& low, const at::Tensor& x, double factor) const;
};

/// base + factor low weight, written over `base` where nobody else holds it. Fused kernels alone.
at::Tensor up_onto(at::Tensor base, const at::Tensor& low, const at::Tensor& weight, double factor);

/// Gradients of scale (x A^T) B^T without that of x, which is `low` A.
struct PairGradients {
  at::Tensor low, a, b;
};
/// `low` is x A^T. Those of A and B where they are wanted; that of `low` where A's or `more` is.
PairGradients pair_gradients(const Products& products, const at::Tensor& grad, const at::Tensor& x,
                             const at::Tensor& low, const at::Tensor& a, const at::Tensor& b, double scale, bool want_a,
                             bool want_b, bool more);

}  // namespace trainer::fused
