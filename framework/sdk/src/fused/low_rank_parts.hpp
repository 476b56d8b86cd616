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

/// As those of Products (low_rank.hpp). With all 24 bits of `weight` and `low` where the result is fp32; a bf16 result
/// is rounded once, from products without their last 8 bits.
at::Tensor down(const at::Tensor& x, const at::Tensor& weight, double factor);
at::Tensor outer(const at::Tensor& low, const at::Tensor& x, double factor);
at::Tensor up(const at::Tensor& low, const at::Tensor& weight, const std::optional<at::Tensor>& base, double factor,
              at::ScalarType dtype);
/// Over base, which lies dense.
at::Tensor& up_in_place(const at::Tensor& low, const at::Tensor& weight, double factor, at::Tensor& base);

}  // namespace trainer::fused::by_parts
