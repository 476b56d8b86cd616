/// @file Products of matrices on the CPU that no library computes well there: of bf16 on a processor without
/// instructions for it, of matrices of which one side is narrow, and with 8-bit numbers.
#pragma once

#include <ATen/core/Tensor.h>
#include <trainer/sdk/abi.h>

#include <optional>

namespace trainer {

/// Whether this processor, as oneDNN may use it, multiplies bf16 itself (AVX512-BF16 or AMX). Where it does not,
/// LibTorch's bf16 products are many times slower than fp32's, and multiply() takes their place. Asked once a process.
TRAINER_API bool has_bf16_products();

/// result = factor a b + base, a [m, k], b [k, n], base [m, n] or [n]; or [batch, m, k] and [batch, k, n]. Any mixture
/// of fp32 and bf16, or all fp64; base has the type of the result, whose last dimension lies dense, and may be the
/// result itself. bf16 is widened in panels that stay in cache, sums are fp32 and rounded once. An element depends on
/// its row, its column and k alone, not on threads or on the other rows, and is the same on every processor that has
/// fused multiply-adds. Panels take at most 0.9 MiB a thread (1.7 MiB for fp64), which no byte counter sees. No
/// derivatives: for operators that have their own. Throws c10::Error where shapes or types do not fit.
TRAINER_API void multiply(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& base,
                          double factor, at::Tensor& result);

/// x W^T (`turned`) or x W for a matrix of 8-bit numbers W = values * scale as in eight_bits::expand(), in bf16: bit
/// for bit what multiply() makes of W expanded, but W is expanded in panels alone (then 1 MiB a thread). x is a matrix
/// of fp32 or bf16, as is the result; no derivatives. Throws c10::Error where shapes or types do not fit.
TRAINER_API at::Tensor multiply_packed(const at::Tensor& x, const at::Tensor& values, const at::Tensor& scale,
                                       int64_t block, bool turned);

/// The convolution of x [B, C, H, W] with weight [O, C, kh, kw] and bias [O], if any, all of one type, fp32 or bf16, as
/// a product by panels: what multiply() says of bits and memory holds for a pixel. The result lies in the channels-last
/// format; x and weight are copied where they do not. No derivatives.
TRAINER_API at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                int64_t stride, at::IntArrayRef padding);

}  // namespace trainer
