/// @file Steps that quantize.cpp shares with the other sources of the codec.
#pragma once

#include <trainer/sdk/eight_bit_weights.hpp>

namespace trainer::eight_bits {

/// Throws Error (bad_input, FP8_NOT_FINITE) when a matrix of any floating dtype holds NaN or infinity.
void require_finite(const at::Tensor& matrix, const std::string& name);

}  // namespace trainer::eight_bits
