/// @file Packed weights back to matrices: what every forward and backward through a packed layer does first.
#pragma once

#include "quantize.hpp"

namespace trainer::fp8 {

/// values * scale, multiplied in fp32 and rounded once to `dtype`: [out, in] on the device of `packed`. No autograd
/// history. On the CPU a loop of our own (LibTorch 2.11 converts fp8 at 0.12 G elements/s a core, this at about ten
/// times that), elsewhere `dequantize_by_operators`; both give the same bits.
at::Tensor dequantize(const Packed& packed, at::ScalarType dtype);

/// The same with LibTorch's operators, for any device.
at::Tensor dequantize_by_operators(const Packed& packed, at::ScalarType dtype);

}  // namespace trainer::fp8
