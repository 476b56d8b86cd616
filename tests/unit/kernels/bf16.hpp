/// @file bf16 as the tests of this folder round it.
#pragma once

#include <cstdint>
#include <cstring>

namespace trainer::kernels {

inline float widened(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float x = 0;
  std::memcpy(&x, &word, sizeof x);
  return x;
}
/// Of a number, not of NaN.
inline uint16_t rounded(float x) {
  uint32_t word = 0;
  std::memcpy(&word, &x, sizeof x);
  return static_cast<uint16_t>((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

}  // namespace trainer::kernels
