/// @file Numbers of few bits, by tables made from what their formats are and not by kernels/eight_bits_numbers.h.
#pragma once

#include <kernels/eight_bits_numbers.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace trainer::kernels::test {

/// Sign, exponent and mantissa bits. Number i of the table, the non-negative finite ones in order, has the bits i.
struct Format {
  int exponents, mantissa;
  bool infinities;  ///< without them all but one code are numbers, and what is too large becomes the largest
  std::vector<double> numbers;

  Format(int e, int m, bool with_infinities) : exponents(e), mantissa(m), infinities(with_infinities) {
    const int bias = (1 << (e - 1)) - 1;
    const unsigned end = infinities ? ((1U << e) - 1) << m : (1U << (e + m)) - 1;
    for (unsigned code = 0; code < end; ++code) {
      const int exponent = static_cast<int>(code >> m);
      const double fraction = static_cast<double>(code & ((1U << m) - 1)) / (1U << m);
      numbers.push_back(exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias));
    }
  }
  [[nodiscard]] unsigned sign() const { return 1U << (exponents + mantissa); }
  [[nodiscard]] double value(unsigned code) const {
    const unsigned size = code & (sign() - 1);
    const double beyond = infinities && size == numbers.size() ? INFINITY : NAN;
    const double number = size < numbers.size() ? numbers[size] : beyond;
    return (code & sign()) != 0 ? -number : number;
  }
  /// Of the nearest, ties to the even code; -1: not a number.
  [[nodiscard]] int64_t code(double x) const {
    if (std::isnan(x)) return -1;
    const unsigned negative = std::signbit(x) ? sign() : 0;
    const double size = std::abs(x), largest = numbers.back();
    const auto up = static_cast<unsigned>(std::lower_bound(numbers.begin(), numbers.end(), size) - numbers.begin());
    if (up == numbers.size()) {
      const double half = (largest - numbers[numbers.size() - 2]) / 2;  // the tie is infinity's, whose code is even
      return negative | (infinities && size >= largest + half ? up : up - 1);
    }
    if (numbers[up] == size) return negative | up;
    const double low = size - numbers[up - 1], high = numbers[up] - size;
    return negative | (low < high || (low == high && up % 2 == 1) ? up - 1 : up);
  }
};
inline const Format kE4m3(4, 3, false), kE5m2(5, 2, true), kF16(5, 10, true), kBf16(8, 7, true);

/// Of an element type: its name for the kernels, the number behind an element, and whether an element is x rounded.
template <typename T>
struct Kind;
template <>
struct Kind<float> {
  static constexpr Number kNumber = Number::f32;
  static double value(float x) { return x; }
  static bool is(float got, double x) {
    const auto wanted = static_cast<float>(x);
    return std::isnan(wanted) ? std::isnan(got) : std::memcmp(&got, &wanted, sizeof got) == 0;
  }
};
template <typename T, const Format& kFormat, Number kOf>
struct Coded {
  static constexpr Number kNumber = kOf;
  static double value(T x) { return kFormat.value(x.bits); }
  static bool is(T got, double x) {
    const int64_t code = kFormat.code(x);
    return code < 0 ? std::isnan(kFormat.value(got.bits)) : got.bits == code;
  }
};
template <>
struct Kind<Bfloat16> : Coded<Bfloat16, kBf16, Number::bf16> {};
template <>
struct Kind<Float16> : Coded<Float16, kF16, Number::f16> {};
template <>
struct Kind<E4m3> : Coded<E4m3, kE4m3, Number::e4m3> {};
template <>
struct Kind<E5m2> : Coded<E5m2, kE5m2, Number::e5m2> {};
template <>
struct Kind<int8_t> {
  static constexpr Number kNumber = Number::int8;
  static double value(int8_t x) { return x; }
  static bool is(int8_t got, double x) {
    return got == (std::isnan(x) ? 0 : static_cast<int>(std::nearbyint(std::clamp(x, -127.0, 127.0))));
  }
};
template <>
struct Kind<int32_t> {
  static constexpr Number kNumber = Number::int32;
  static double value(int32_t x) { return static_cast<float>(x); }
};

}  // namespace trainer::kernels::test
