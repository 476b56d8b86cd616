/// @file Rows of numbers in vectors, for the kernels of this folder.
#pragma once

#include <kernels/fused.h>
#include <kernels/cpu/lanes.hpp>

namespace trainer::kernels {
namespace {

struct Bf16 {
  uint16_t bits;
};

/// How elements of type T are computed with: in vectors V of kLanes Scalars.
template <typename T>
struct PlainPack {
  using Scalar = T;
  using V = std::conditional_t<std::is_same_v<T, double>, Doubles, Floats>;
  static constexpr int64_t kLanes = kLanesOf<V>;
  TRAINER_INLINE static V load(const T* from) { return raw_load<V>(from); }
  TRAINER_INLINE static V load(const T* from, int64_t count) { return raw_load<V>(from, count * sizeof(T)); }
  TRAINER_INLINE static void store(T* to, V v) { raw_store(to, v); }
  TRAINER_INLINE static void store(T* to, V v, int64_t count) { raw_store(to, v, count * sizeof(T)); }
};
template <typename T>
struct Pack;
template <>
struct Pack<float> : PlainPack<float> {};
template <>
struct Pack<double> : PlainPack<double> {};

/// Computed with in fp32, rounded to the nearest (ties to even) on the way back.
template <>
struct Pack<Bf16> {
  using Scalar = float;
  using V = Floats;
  static constexpr int64_t kLanes = kLanesOf<V>;
  TRAINER_INLINE static V widen(Halves raw) { return bits_as<V>(convert<Words>(raw) << 16); }
  TRAINER_INLINE static Halves narrow(V v) {
    const Words bits = bits_as<Words>(v);
    const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return convert<Halves>(select(v == v, rounded, all<Words>(0x7fc0)));
  }
  TRAINER_INLINE static V load(const Bf16* from) { return widen(raw_load<Halves>(from)); }
  TRAINER_INLINE static V load(const Bf16* from, int64_t count) {
    return widen(raw_load<Halves>(from, count * sizeof(Bf16)));
  }
  TRAINER_INLINE static void store(Bf16* to, V v) { raw_store(to, narrow(v)); }
  TRAINER_INLINE static void store(Bf16* to, V v, int64_t count) { raw_store(to, narrow(v), count * sizeof(Bf16)); }
};

/// Calls body(position, whole) for every vector of a row, body(position, count) for the rest of it: `body` is a generic
/// lambda whose second argument is passed on to load and store.
struct Whole {};
template <typename P, typename T>
TRAINER_INLINE typename P::V load(const T* from, Whole) {
  return P::load(from);
}
template <typename P, typename T>
TRAINER_INLINE typename P::V load(const T* from, int64_t count) {
  return P::load(from, count);
}
template <typename P, typename T>
TRAINER_INLINE void store(T* to, typename P::V v, Whole) {
  P::store(to, v);
}
template <typename P, typename T>
TRAINER_INLINE void store(T* to, typename P::V v, int64_t count) {
  P::store(to, v, count);
}
template <int64_t kLanes, typename Body>
TRAINER_INLINE void for_row(int64_t width, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) body(i, Whole{});
  if (i < width) body(i, width - i);
}

/// Asks for memory before it is needed: what a processor fetches ahead by itself ends with the page, and it does not
/// see the next one coming. Beyond an array is harmless.
constexpr std::size_t kAheadBytes = 2048;
TRAINER_INLINE void fetch(const void* at, std::size_t ahead = 0) {
  __builtin_prefetch(static_cast<const std::byte*>(at) + ahead, /*rw=*/0);
}
TRAINER_INLINE void fetch_to_write(const void* at, std::size_t ahead = 0) {
  __builtin_prefetch(static_cast<const std::byte*>(at) + ahead, /*rw=*/1);
}

/// One in the lanes that hold elements.
template <typename P>
TRAINER_INLINE typename P::V lanes(Whole) {
  return all<typename P::V>(1);
}
template <typename P>
TRAINER_INLINE typename P::V lanes(int64_t count) {
  typename P::Scalar ones[P::kLanes];
  for (int64_t i = 0; i < P::kLanes; ++i) ones[i] = i < count ? 1 : 0;
  return raw_load<typename P::V>(ones);
}

}  // namespace
}  // namespace trainer::kernels
