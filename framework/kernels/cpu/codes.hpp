/// @file 8-bit numbers expanded in registers: what eight_bits_numbers.h says of one, for a vector of them. Included by
/// product_panels.hpp alone.
#pragma once

#include <kernels/eight_bits.h>
#include <kernels/cpu/native.hpp>

namespace trainer::kernels {
namespace {

using NativeBytes = uint8_t __attribute__((vector_size(kRegisterBytes / 4)));
using NativeIntegers = int32_t __attribute__((vector_size(kRegisterBytes)));

TRAINER_INLINE NativeFloats converted(NativeWords numbers) {
  return __builtin_convertvector(bits_as<NativeIntegers>(numbers), NativeFloats);
}

/// Codes of a sign, kExponents bits and kMantissa; from kNone on they are no finite numbers.
template <int kExponents, int kMantissa, uint32_t kNone>
TRAINER_INLINE NativeFloats floats_of(NativeWords codes) {
  constexpr uint32_t kBias = (1U << (kExponents - 1)) - 1;
  const NativeWords size = codes & 0x7f;
  // Below the normal range they count the smallest: fp32's own numbers there would take processors long.
  const NativeWords small = bits_as<NativeWords>(converted(size) * bits_as<float>((128 - kBias - kMantissa) << 23));
  NativeWords bits = select(size < (1U << kMantissa), small, (size << (23 - kMantissa)) + ((127 - kBias) << 23));
  bits |= select(size >= kNone, NativeWords{} + 0x7f800000U, NativeWords{});
  return bits_as<NativeFloats>(bits | (codes & 0x80) << 24);
}
template <Number kType>
TRAINER_INLINE NativeFloats numbers_of(NativeWords codes) {
  if constexpr (kType == Number::e4m3) return floats_of<4, 3, 0x7f>(codes);
  if constexpr (kType == Number::e5m2) return floats_of<5, 2, 0x7c>(codes);
  if constexpr (kType == Number::int8) return converted((codes ^ 0x80) - 0x80);
}

/// to [count] = codes that share a scale.
template <Number kType>
TRAINER_INLINE void expand(const uint8_t* codes, int64_t count, float scale, Bf16* to) {
  constexpr int64_t kLanes = Native<float>::kLanes;
  const auto expanded = [scale](NativeBytes raw) {
    return numbers_of<kType>(__builtin_convertvector(raw, NativeWords)) * scale;
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Widened<Bf16>::store(to + i, expanded(raw_load<NativeBytes>(codes + i)));
  if (i == count) return;
  Bf16 rest[kLanes];
  Widened<Bf16>::store(rest, expanded(raw_load<NativeBytes>(codes + i, count - i)));
  std::memcpy(to + i, rest, static_cast<std::size_t>(count - i) * sizeof(Bf16));
}

/// A processor does not see by itself where the next rows' pieces begin.
constexpr int64_t kRowsAhead = 8;
/// to [rows, columns] = those of the codes' rows and columns from `row` and `column` on.
template <Number kType>
void expand(const Codes& of, int64_t row, int64_t rows, int64_t column, int64_t columns, Bf16* to) {
  for (const int64_t end = row + rows; row < end; ++row, to += columns) {
    const float* const scale = of.scale + row * of.scale_step;
    for (int64_t i = 0; i < columns; i += 64) fetch(of.values + (row + kRowsAhead) * of.width + column + i);
    for (int64_t i = 0; i < columns;) {
      const int64_t group = (column + i) / of.block;
      const int64_t count = std::min(columns - i, (group + 1) * of.block - column - i);
      expand<kType>(of.values + row * of.width + column + i, count, scale[group], to + i);
      i += count;
    }
  }
}
void expand(const Codes& of, int64_t row, int64_t rows, int64_t column, int64_t columns, void* to) {
  auto* const numbers = static_cast<Bf16*>(to);
  if (of.type == Number::e4m3) expand<Number::e4m3>(of, row, rows, column, columns, numbers);
  if (of.type == Number::e5m2) expand<Number::e5m2>(of, row, rows, column, columns, numbers);
  if (of.type == Number::int8) expand<Number::int8>(of, row, rows, column, columns, numbers);
}

}  // namespace
}  // namespace trainer::kernels
