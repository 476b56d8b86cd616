/// @file Vectors as wide as a register of the level that is compiled, and matrices of any stored type widened into
/// them. Included by product_panels.hpp and codes.hpp alone.
#pragma once

#include <kernels/cpu/pack.hpp>

#include <algorithm>
#include <utility>

namespace trainer::kernels {
namespace {

template <typename Scalar>
struct Native {
  typedef Scalar V __attribute__((vector_size(kRegisterBytes)));
  static constexpr int64_t kLanes = static_cast<int64_t>(kRegisterBytes / sizeof(Scalar));
};
using NativeFloats = Native<float>::V;
using NativeWords = Native<uint32_t>::V;
using NativeHalves = uint16_t __attribute__((vector_size(kRegisterBytes / 2)));

/// One number in every lane, by one instruction.
template <typename V, typename Scalar, std::size_t... kLane>
TRAINER_INLINE V repeated(Scalar one, std::index_sequence<kLane...>) {
  return V{((void)kLane, one)...};
}
template <typename Scalar>
TRAINER_INLINE typename Native<Scalar>::V repeated(Scalar one) {
  return repeated<typename Native<Scalar>::V>(one, std::make_index_sequence<Native<Scalar>::kLanes>());
}

/// A product that is rounded before something is added to it. Else the compiler would fuse the two at one level and not
/// at another.
template <typename V>
TRAINER_INLINE V unfused(V x) {
#ifdef __x86_64__
  asm("" : "+x"(x));  // hides from the compiler that it is a product
#endif
  return x;
}

/// Elements of type T in memory, computed with as Scalars.
template <typename T>
struct Widened {
  using Scalar = T;
  TRAINER_INLINE static typename Native<T>::V load(const T* from) { return raw_load<typename Native<T>::V>(from); }
  TRAINER_INLINE static T one(T x) { return x; }
  TRAINER_INLINE static void store(T* to, typename Native<T>::V v) { std::memcpy(to, &v, sizeof v); }
  TRAINER_INLINE static T narrow(T x) { return x; }
};
template <>
struct Widened<Bf16> {
  using Scalar = float;
  TRAINER_INLINE static NativeFloats load(const Bf16* from) {
    return bits_as<NativeFloats>(__builtin_convertvector(raw_load<NativeHalves>(from), NativeWords) << 16);
  }
  TRAINER_INLINE static float one(Bf16 x) { return bits_as<float>(static_cast<uint32_t>(x.bits) << 16); }
  TRAINER_INLINE static void store(Bf16* to, NativeFloats v) {
    const NativeWords bits = bits_as<NativeWords>(v);
    const NativeWords rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const NativeHalves raw = __builtin_convertvector(v == v ? rounded : NativeWords{} + 0x7fc0, NativeHalves);
    std::memcpy(to, &raw, sizeof raw);
  }
  TRAINER_INLINE static Bf16 narrow(float x) {
    const auto bits = bits_as<uint32_t>(x);
    return {static_cast<uint16_t>(x == x ? (bits + 0x7fff + ((bits >> 16) & 1)) >> 16 : 0x7fc0)};
  }
};

/// to [rows, columns] = from, rows `step` and `to_step` apart.
template <typename T>
TRAINER_INLINE void widen(const T* from, int64_t step, int64_t rows, int64_t columns, typename Widened<T>::Scalar* to,
                          int64_t to_step) {
  constexpr int64_t kLanes = Native<typename Widened<T>::Scalar>::kLanes;
  for (int64_t row = 0; row < rows; ++row) {
    const T* const x = from + row * step;
    auto* const y = to + row * to_step;
    int64_t i = 0;
    for (; i + kLanes <= columns; i += kLanes) {
      const auto v = Widened<T>::load(x + i);
      std::memcpy(y + i, &v, sizeof v);
    }
    for (; i < columns; ++i) y[i] = Widened<T>::one(x[i]);
  }
}

/// Exchanges lanes of `a` with lanes of `b`, blocks of kBlock at a time.
template <int kBlock, typename V, int... kLane>
TRAINER_INLINE void exchange_lanes(V& a, V& b, std::integer_sequence<int, kLane...>) {
  constexpr int kLanes = sizeof...(kLane);
  const V low = __builtin_shufflevector(a, b, ((kLane & kBlock) == 0 ? kLane : kLanes + kLane - kBlock)...);
  b = __builtin_shufflevector(a, b, ((kLane & kBlock) == 0 ? kLane + kBlock : kLanes + kLane)...);
  a = low;
}
template <int kBlock, int kLanes, typename V>
TRAINER_INLINE void exchange_rows(V* rows) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
    if ((i & kBlock) == 0) exchange_lanes<kBlock>(rows[i], rows[i + kBlock], std::make_integer_sequence<int, kLanes>());
  if constexpr (kBlock > 1) exchange_rows<kBlock / 2, kLanes>(rows);
}

/// to [columns, rows] = from [rows, columns] transposed.
template <typename T>
TRAINER_INLINE void widen_turned(const T* from, int64_t step, int64_t rows, int64_t columns,
                                 typename Widened<T>::Scalar* to, int64_t to_step) {
  using N = Native<typename Widened<T>::Scalar>;
  constexpr int64_t kLanes = N::kLanes;
  for (int64_t row = 0; row < rows; row += kLanes) {
    const int64_t height = std::min(kLanes, rows - row);
    int64_t column = 0;
    if (height == kLanes)
      for (; column + kLanes <= columns; column += kLanes) {
        typename N::V block[kLanes];
        for (int64_t i = 0; i < kLanes; ++i) block[i] = Widened<T>::load(from + (row + i) * step + column);
        exchange_rows<kLanes / 2, kLanes>(block);
        for (int64_t i = 0; i < kLanes; ++i) std::memcpy(to + (column + i) * to_step + row, &block[i], sizeof block[i]);
      }
    for (; column < columns; ++column)
      for (int64_t i = 0; i < height; ++i)
        to[column * to_step + row + i] = Widened<T>::one(from[(row + i) * step + column]);
  }
}

}  // namespace
}  // namespace trainer::kernels
