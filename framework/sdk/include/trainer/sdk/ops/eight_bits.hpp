/// @file Passes around products of 8-bit numbers, each once over its data. They are there for CUDA devices, where
/// LibTorch's operators would pass fp32 copies through memory several times; on the CPU the same numbers come from plain
/// loops, which are the kernels' reference. Without derivatives: for weights that are not trained, in Functions with a
/// backward of their own. e4m3 is Float8_e4m3fn; "floating" below is fp32, bf16 or fp16. Results do not depend on
/// threads.
#pragma once

#include <trainer/sdk/tensor.hpp>

namespace trainer::eight_bits {

/// Whether to call these for tensors like this one rather than LibTorch's operators: on a CUDA device, when this build
/// has kernels and they compute there what the CPU does (tried on small numbers when the device is first met; a warning
/// tells if not).
TRAINER_API bool has_kernels(const at::Tensor& tensor);

/// A matrix [M, K] as values * scale.
struct Rows {
  at::Tensor values;  ///< [M, K], e4m3 or Char
  at::Tensor scale;   ///< [M, 1] fp32
};

/// Each row of a floating matrix [M, K], after multiplication with `factors` [K] (fp32; undefined: 1), in 8 bits of
/// `code` (e4m3 or Char): scale = its largest absolute number / 448 or 127, in the normal range of fp32, 1 for rows of
/// zeros; rounded to the nearest, ties to even. NaN makes its row NaN, infinity its number; Char has 0 and the scale
/// for it.
TRAINER_API Rows quantize_rows(const at::Tensor& x, const at::Tensor& factors, at::ScalarType code);

/// sums [M, N] (Int or fp32) * row_scale [M, 1] * column_scale [N] (undefined: 1), in this order in fp32, rounded once
/// to `dtype`, which is floating. Scales are fp32.
TRAINER_API at::Tensor scale_sums(const at::Tensor& sums, const at::Tensor& row_scale, const at::Tensor& column_scale,
                                  at::ScalarType dtype);

/// values [out, in] (e4m3, e5m2 or Char) * scale [1 or out, columns] (fp32, one for `block` inputs), in fp32, rounded
/// once to `dtype`, which is floating.
TRAINER_API at::Tensor expand(const at::Tensor& values, const at::Tensor& scale, int64_t block, at::ScalarType dtype);

/// The dense transpose [N, M] of a matrix [M, N] of 8-bit numbers.
TRAINER_API at::Tensor transposed(const at::Tensor& values);

}  // namespace trainer::eight_bits
