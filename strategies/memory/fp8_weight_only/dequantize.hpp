/// @file Packed weights back to matrices, and products with them.
#pragma once

#include "quantize.hpp"

namespace trainer::fp8 {

/// values * scale, multiplied in fp32 and rounded once to `dtype`: [out, in] on the device of `packed`. No autograd
/// history. On the CPU a loop of our own (to bf16 3.8 G elements/s on a core, where LibTorch 2.11 converts 0.2),
/// on CUDA a kernel of the SDK's, where there is none `dequantize_by_operators`; all give the same bits.
at::Tensor dequantize(const Packed& packed, at::ScalarType dtype);

/// The same with LibTorch's operators, for any device.
at::Tensor dequantize_by_operators(const Packed& packed, at::ScalarType dtype);

/// Whether the CPU computes with it, or would where a dry run stands for that.
bool on_cpu(const at::Tensor& tensor);

/// x W^T (`turned`) or x W in x's dtype, with W dequantized in it. Where the SDK's panels take the place of LibTorch's
/// products of bf16, W is expanded in them; the bits are the same.
at::Tensor product(const at::Tensor& x, const Packed& packed, bool turned);

}  // namespace trainer::fp8
