/// @file The products of a low-rank adapter as matrix products of LibTorch's, for CUDA. Private to this folder.
///
/// Beside bf16 data [M, K] the adapter is fp32 and narrow: reading the data once is what a product must take, and
/// tensor cores multiply bf16 alone. Copies of the data in fp32 move three to five times its bytes. Here the narrow
/// sides are split instead, into bf16 parts that sum to them (trainer::bf16_parts), which lie beside each other as one
/// matrix of three times the rank: a product reads the data once as it is, and sums in fp32. Counts: docs/adr/0007.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace trainer::fused::by_parts {

/// As those of Products (low_rank.hpp). With all 24 bits of `weight` and `low` where the result is fp32. A bf16 result
/// is of products without their last 8 bits: each term of a sum is off by 2^-16 of itself, which is more of a sum whose
/// terms cancel. It is rounded once where cuBLAS sums in one piece; where it splits the sum, LibTorch lets it add the
/// pieces in bf16 (allow_bf16_reduced_precision_reduction), as in every bf16 product of the model.
at::Tensor down(const at::Tensor& x, const at::Tensor& weight, double factor);
at::Tensor outer(const at::Tensor& low, const at::Tensor& x, double factor);
at::Tensor up(const at::Tensor& low, const at::Tensor& weight, const std::optional<at::Tensor>& base, double factor,
              at::ScalarType dtype);
/// Over base, which lies dense.
at::Tensor& up_in_place(const at::Tensor& low, const at::Tensor& weight, double factor, at::Tensor& base);

}  // namespace trainer::fused::by_parts
