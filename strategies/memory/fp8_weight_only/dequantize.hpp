/// @file Packed weights back to matrices: what every forward and backward through a packed layer does first.
#pragma once

#include "quantize.hpp"

namespace trainer::fp8 {

/// values * scale, multiplied in fp32 and rounded once to `dtype`: [out, in] on the device of `packed`. No autograd
/// history. On the CPU a loop of our own (to bf16 3.8 G elements/s on a core, where LibTorch 2.11 converts 0.2),
/// on CUDA a kernel of the SDK's, where there is none `dequantize_by_operators`; all give the same bits.
at::Tensor dequantize(const Packed& packed, at::ScalarType dtype);

/// The same with LibTorch's operators, for any device.
at::Tensor dequantize_by_operators(const Packed& packed, at::ScalarType dtype);

}  // namespace trainer::fp8
