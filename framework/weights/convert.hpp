/// @file Element types of files and of LibTorch, and the check for NaN and infinity.
#pragma once

#include <ATen/core/Tensor.h>
#include <weights/dtype.hpp>

#include <optional>

namespace trainer::weights {

/// nullopt for F4 and F6, which LibTorch 2.11 has no element type for. F8_E4M3 is Float8_e4m3fn, never the fnuz form.
std::optional<at::ScalarType> scalar_type(Dtype dtype);
/// nullopt for types that the format cannot hold (complex double and half, quantized, bit types).
std::optional<Dtype> file_dtype(at::ScalarType type);

/// No NaN and no infinity. True for integer types and for empty tensors. One pass, no temporary of the tensor's size.
bool all_finite(const at::Tensor& tensor);

}  // namespace trainer::weights
