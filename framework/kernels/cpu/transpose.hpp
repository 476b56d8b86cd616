/// @file Rows of numbers turned into columns, and packed as products of matrices read them. Included by the kernels of
/// this folder alone.
#pragma once

#include <kernels/cpu/pack.hpp>

#include <algorithm>
#include <utility>

namespace trainer::kernels {
namespace {

/// Exchanges lanes of `a` with lanes of `b`, blocks of kBlock at a time.
template <int kBlock, typename V, int... kLane>
TRAINER_INLINE void exchange(V& a, V& b, std::integer_sequence<int, kLane...>) {
  constexpr int kCount = sizeof...(kLane);
  const V low = __builtin_shufflevector(a, b, ((kLane & kBlock) == 0 ? kLane : kCount + kLane - kBlock)...);
  b = __builtin_shufflevector(a, b, ((kLane & kBlock) == 0 ? kLane + kBlock : kCount + kLane)...);
  a = low;
}
template <int kBlock, typename V>
TRAINER_INLINE void exchange(V& a, V& b) {
  if constexpr (!kIsTwo<V>) {
    exchange<kBlock>(a, b, std::make_integer_sequence<int, kLanesOf<V>>());
  } else if constexpr (kBlock == kLanesOf<decltype(a.low)>) {
    std::swap(a.high, b.low);
  } else {
    exchange<kBlock>(a.low, b.low);
    exchange<kBlock>(a.high, b.high);
  }
}
template <int kBlock>
TRAINER_INLINE void exchange_all(Words (&rows)[16]) {
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i)
    if ((i & kBlock) == 0) exchange<kBlock>(rows[i], rows[i + kBlock]);
}
/// 16 x 16 words.
TRAINER_INLINE void transpose(Words (&rows)[16]) {
  exchange_all<8>(rows);
  exchange_all<4>(rows);
  exchange_all<2>(rows);
  exchange_all<1>(rows);
}

/// Words [rows, columns], by load(row, column, count), to store(column, row, words, count).
template <typename Load, typename Store>
TRAINER_INLINE void transpose(int64_t rows, int64_t columns, const Load& load, const Store& store) {
  for (int64_t row = 0; row < rows; row += 16)
    for (int64_t column = 0; column < columns; column += 16) {
      const int64_t height = std::min<int64_t>(16, rows - row), width = std::min<int64_t>(16, columns - column);
      Words block[16];
      for (int i = 0; i < 16; ++i) block[i] = i < height ? load(row + i, column, width) : Words{};
      transpose(block);
      for (int i = 0; i < 16; ++i)
        if (i < width) store(column + i, row, block[i], height);
    }
}

template <typename T>
TRAINER_INLINE Words load_words(const T* from, int64_t count) {
  return count == 16 ? raw_load<Words>(from) : raw_load<Words>(from, count * 4);
}
template <typename T, typename V>
TRAINER_INLINE void store_some(T* to, const V& v, int64_t count) {
  if (count == 16)
    raw_store(to, v);
  else
    raw_store(to, v, count * sizeof(Element<V>));
}

/// Rows [rows, width] to [width, rows]; of 2-byte numbers pairs stay together: [width / 2, rows, 2].
template <typename T>
void to_columns(const T* from, int64_t step, int64_t rows, int64_t width, T* to) {
  constexpr int64_t kPer = 4 / sizeof(T);
  transpose(
      rows, width / kPer,
      [&](int64_t row, int64_t i, int64_t n) { return load_words(from + row * step + i * kPer, n); },
      [&](int64_t i, int64_t row, Words v, int64_t n) { store_some(to + (i * rows + row) * kPer, v, n); });
}

/// The same, of bf16 widened.
inline void to_columns(const Bf16* from, int64_t step, int64_t rows, int64_t width, float* to) {
  transpose(
      rows, width,
      [&](int64_t row, int64_t i, int64_t n) {
        const Bf16* const at = from + row * step + i;
        return convert<Words>(n == 16 ? raw_load<Halves>(at) : raw_load<Halves>(at, n * sizeof(Bf16))) << 16;
      },
      [&](int64_t i, int64_t row, Words v, int64_t n) { store_some(to + i * rows + row, v, n); });
}

/// Rows [rows, width] to [width, paired rows]: a zero behind each where they are of 2 bytes and odd.
inline void to_plain_columns(const float* from, int64_t step, int64_t rows, int64_t width, float* to) {
  to_columns(from, step, rows, width, to);
}
inline void to_plain_columns(const Bf16* from, int64_t step, int64_t rows, int64_t width, float* to) {
  to_columns(from, step, rows, width, to);
}
inline void to_plain_columns(const Bf16* from, int64_t step, int64_t rows, int64_t width, Bf16* to) {
  const int64_t length = rows + rows % 2;
  transpose(
      rows, width / 2, [&](int64_t row, int64_t i, int64_t n) { return load_words(from + row * step + 2 * i, n); },
      [&](int64_t i, int64_t row, Words v, int64_t n) {
        store_some(to + 2 * i * length + row, convert<Halves>(v & 0xffff), n);
        store_some(to + (2 * i + 1) * length + row, convert<Halves>(v >> 16), n);
      });
  if (rows < length)
    for (int64_t i = 0; i < width; ++i) to[i * length + rows] = Bf16{0};
}

/// Rows side by side: of 2-byte numbers by pairs of rows, [rows / 2, width, 2], the last with zeros if need be.
inline void to_pairs(const float* from, int64_t step, int64_t rows, int64_t width, float* to) {
  for (int64_t row = 0; row < rows; ++row)
    std::memcpy(to + row * width, from + row * step, static_cast<std::size_t>(width) * sizeof(float));
}
inline void to_pairs(const Bf16* from, int64_t step, int64_t rows, int64_t width, float* to) {
  for (int64_t row = 0; row < rows; ++row)
    for_row<Pack<Bf16>::kLanes>(width, [&](int64_t i, auto count) {
      kernels::store<Pack<float>>(to + row * width + i, kernels::load<Pack<Bf16>>(from + row * step + i, count), count);
    });
}
TRAINER_INLINE Words pair(Halves first, Halves second) {
  return convert<Words>(first) | (convert<Words>(second) << 16);
}
inline void to_pairs(const Bf16* from, int64_t step, int64_t rows, int64_t width, Bf16* to) {
  for (int64_t row = 0; row < rows; row += 2)
    for (int64_t i = 0; i < width; i += 16) {
      const int64_t count = std::min<int64_t>(16, width - i);
      const Bf16* const first = from + row * step + i;
      const Halves low = raw_load<Halves>(first, count * sizeof(Bf16));
      const Halves high = row + 1 < rows ? raw_load<Halves>(first + step, count * sizeof(Bf16)) : Halves{};
      store_some(to + row * width + 2 * i, pair(low, high), count);
    }
}

}  // namespace
}  // namespace trainer::kernels
