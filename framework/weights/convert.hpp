/// @file Element types of files and of LibTorch, conversion between them, and the check for NaN and infinity.
#pragma once

#include <ATen/core/Tensor.h>
#include <weights/dtype.hpp>

#include <optional>
#include <string>

namespace trainer {
class WeightSource;
}

namespace trainer::weights {

/// nullopt for F4 and F6, which LibTorch 2.11 has no element type for. F8_E4M3 is Float8_e4m3fn, never the fnuz form.
std::optional<at::ScalarType> scalar_type(Dtype dtype);
/// nullopt for types that the format cannot hold (complex double and half, quantized, bit types).
std::optional<Dtype> file_dtype(at::ScalarType type);

/// `tensor` as `type`, on the same device; the tensor itself when it has that type. Float8 saturates: LibTorch's cast
/// makes NaN (e4m3fn) or infinity (e5m2) of what is too large. NaN stays NaN. Source: OCP 8-bit Floating Point, 1.0.
at::Tensor convert_dtype(const at::Tensor& tensor, at::ScalarType type);

/// No NaN and no infinity. True for integer types and for empty tensors. One pass, no temporary of the tensor's size.
bool all_finite(const at::Tensor& tensor);

/// Reads every tensor. Throws Error (bad_input, LORA_NONFINITE) naming those that hold NaN or infinity. For adapters,
/// always; for models behind `--check-finite`, since it reads the whole file.
void check_finite(WeightSource& source);

}  // namespace trainer::weights
