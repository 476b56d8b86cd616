/// @file The element types a safetensors file can hold: names and sizes. Free of LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trainer::weights {

/// In the order of the reference implementation (safetensors 0.8): its writer puts later ones first.
enum class Dtype : uint8_t {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64,
};

/// The name in a file, e.g. "BF16".
std::string_view dtype_name(Dtype dtype);
/// Bits of one element: 4, 6, 8, 16, 32 or 64.
unsigned dtype_bits(Dtype dtype);
/// nullopt for a name that no version of the format has.
std::optional<Dtype> dtype_from_name(std::string_view name);
/// "BOOL, F4, ..., U64", for messages.
std::string known_dtypes();

}  // namespace trainer::weights
