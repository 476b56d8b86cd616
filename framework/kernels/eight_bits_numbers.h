/// @file The arithmetic of 8-bit numbers, one at a time: compiled by nvcc for the kernels and by the C++ compiler for
/// the CPU, where every code and every bf16 number is compared with LibTorch's conversions (tests/unit/eight_bits).
/// fp32 numbers below the normal range count (no flushing to zero on either side).
#pragma once

#include <kernels/eight_bits.h>

#include <cmath>
#include <cstring>

#ifdef __CUDACC__
#define TRAINER_HOST_DEVICE __host__ __device__ inline
#else
#define TRAINER_HOST_DEVICE inline
#endif

namespace trainer::kernels {

/// Elements of matrices in memory. A code's type says how its bits are read.
struct Bfloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};
struct E4m3 {
  uint8_t bits;
};
struct E5m2 {
  uint8_t bits;
};

TRAINER_HOST_DEVICE uint32_t bits_of(float number) {
  uint32_t bits;
  memcpy(&bits, &number, sizeof bits);
  return bits;
}
TRAINER_HOST_DEVICE float float_of(uint32_t bits) {
  float number;
  memcpy(&number, &bits, sizeof number);
  return number;
}

/// Bits without the sign: ordered as the numbers are, infinity above all of them, NaN above infinity.
TRAINER_HOST_DEVICE uint32_t magnitude(float number) { return bits_of(number) & 0x7fffffffU; }

/// With a sign of `sign_bits` and a number whose exponent has `kExponents` bits, shifted to where fp32 has its own: the
/// product with a power of two puts the exponent right, also below the normal range. All exponent bits set: infinity
/// or NaN.
template <int kExponents, int kMantissa>
TRAINER_HOST_DEVICE float widened(uint32_t code) {
  constexpr uint32_t kSign = 1U << (kExponents + kMantissa), kInfinity = ((1U << kExponents) - 1) << kMantissa;
  constexpr uint32_t kBias = (1U << (kExponents - 1)) - 1;
  const uint32_t size = code & (kSign - 1), sign = (code & kSign) != 0 ? 0x80000000U : 0;
  if (size >= kInfinity) return float_of(sign | 0x7f800000U | (size - kInfinity) << (23 - kMantissa));
  return float_of(sign | bits_of(float_of(size << (23 - kMantissa)) * float_of((254U - kBias) << 23)));
}

TRAINER_HOST_DEVICE float to_float(float number) { return number; }
TRAINER_HOST_DEVICE float to_float(int32_t number) { return static_cast<float>(number); }
TRAINER_HOST_DEVICE float to_float(int8_t code) { return static_cast<float>(code); }
TRAINER_HOST_DEVICE float to_float(Bfloat16 number) { return float_of(static_cast<uint32_t>(number.bits) << 16); }
TRAINER_HOST_DEVICE float to_float(Float16 number) { return widened<5, 10>(number.bits); }
TRAINER_HOST_DEVICE float to_float(E5m2 code) { return widened<5, 2>(code.bits); }
/// Without infinities: one code and its negative are NaN, its neighbours numbers up to 448.
TRAINER_HOST_DEVICE float to_float(E4m3 code) {
  const uint32_t size = code.bits & 0x7fU, sign = static_cast<uint32_t>(code.bits & 0x80U) << 24;
  if (size == 0x7f) return float_of(sign | 0x7fc00000U);
  return float_of(sign | bits_of(float_of(size << 20) * 0x1p120F));
}

TRAINER_HOST_DEVICE void round_to(float number, float* to) { *to = number; }
TRAINER_HOST_DEVICE void round_to(float number, Bfloat16* to) {
  const uint32_t bits = bits_of(number);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  to->bits = static_cast<uint16_t>(number == number ? rounded : 0x7fc0);
}
/// To the nearest, ties to even; what is too large becomes infinity.
TRAINER_HOST_DEVICE void round_to(float number, Float16* to) {
  const uint32_t size = magnitude(number), sign = (bits_of(number) >> 16) & 0x8000U;
  uint32_t code = 0x7e00;
  if (size < 0x38800000U)  // below 2^-14: the steps of 0.5 in fp32 are those of the code
    code = bits_of(float_of(size) + 0.5F) - bits_of(0.5F);
  else if (size < 0x477ff000U)
    code = ((size + 0xfff + ((size >> 13) & 1)) >> 13) - (112U << 10);
  else if (size <= 0x7f800000U)
    code = 0x7c00;
  to->bits = static_cast<uint16_t>(sign | code);
}
/// To the nearest, ties to even; what is beyond 448 becomes 448, NaN stays one.
TRAINER_HOST_DEVICE void round_to(float number, E4m3* to) {
  const uint32_t size = magnitude(number), sign = (bits_of(number) >> 24) & 0x80U;
  uint32_t code = 0x7f;
  if (size < 0x3c800000U)  // below 2^-6: the steps of 16384 in fp32 are those of the code
    code = bits_of(float_of(size) + 16384.0F) - bits_of(16384.0F);
  else if (size < 0x43e00000U)
    code = ((size + 0x7ffff + ((size >> 20) & 1)) >> 20) - (120U << 3);
  else if (size <= 0x7f800000U)
    code = 0x7e;
  to->bits = static_cast<uint8_t>(sign | code);
}
/// To the nearest, ties to even; what is beyond 127 becomes 127, NaN becomes 0.
TRAINER_HOST_DEVICE void round_to(float number, int8_t* to) {
  const float whole = rintf(number);
  const float bounded = whole > 127.0F ? 127.0F : (whole < -127.0F ? -127.0F : whole);
  *to = bounded == bounded ? static_cast<int8_t>(bounded) : static_cast<int8_t>(0);
}

/// The scale of a row whose largest absolute number is `amax`, for a code whose largest is `largest`.
TRAINER_HOST_DEVICE float row_scale(float amax, float largest) {
  constexpr float kSmallestNormal = 0x1p-126F;
  const float scale = amax / largest;
  if (amax == 0) return 1;
  return scale < kSmallestNormal ? kSmallestNormal : scale;  // NaN stays
}
TRAINER_HOST_DEVICE float largest_of(E4m3) { return 448; }
TRAINER_HOST_DEVICE float largest_of(int8_t) { return 127; }

}  // namespace trainer::kernels
