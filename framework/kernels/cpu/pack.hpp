/// @file Vectors of 64 bytes and rows of them, for the kernels of this folder. GCC's and clang's vector types: one
/// source for every instruction set, and lanes that are summed in the same order on all of them.
#pragma once

#include <kernels/fused.h>

#include <cstring>

#define TRAINER_INLINE [[gnu::always_inline]] inline

namespace trainer::kernels {
namespace {

using Floats = float __attribute__((vector_size(64)));
using Doubles = double __attribute__((vector_size(64)));
using Words = uint32_t __attribute__((vector_size(64)));
using Integers = int32_t __attribute__((vector_size(64)));
using Halves = uint16_t __attribute__((vector_size(32)));

/// The same bits as another type of that size.
template <typename To, typename From>
TRAINER_INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

struct Bf16 {
  uint16_t bits;
};

/// Memory to register and back; with a count, the other lanes are zero and not touched in memory.
template <typename Raw, typename T>
TRAINER_INLINE Raw raw_load(const T* from) {
  Raw raw;
  std::memcpy(&raw, from, sizeof raw);
  return raw;
}
template <typename Raw, typename T>
TRAINER_INLINE Raw raw_load(const T* from, int64_t count) {
  Raw raw{};
  std::memcpy(&raw, from, static_cast<std::size_t>(count) * sizeof(T));
  return raw;
}

/// How elements of type T are computed with: in vectors V of kLanes Scalars.
template <typename T>
struct Pack;

template <>
struct Pack<float> {
  using V = Floats;
  using Scalar = float;
  static constexpr int64_t kLanes = 16;
  TRAINER_INLINE static V load(const float* from) { return raw_load<V>(from); }
  TRAINER_INLINE static V load(const float* from, int64_t count) { return raw_load<V>(from, count); }
  TRAINER_INLINE static void store(float* to, V v) { std::memcpy(to, &v, sizeof v); }
  TRAINER_INLINE static void store(float* to, V v, int64_t count) {
    std::memcpy(to, &v, static_cast<std::size_t>(count) * sizeof(float));
  }
};

template <>
struct Pack<double> {
  using V = Doubles;
  using Scalar = double;
  static constexpr int64_t kLanes = 8;
  TRAINER_INLINE static V load(const double* from) { return raw_load<V>(from); }
  TRAINER_INLINE static V load(const double* from, int64_t count) { return raw_load<V>(from, count); }
  TRAINER_INLINE static void store(double* to, V v) { std::memcpy(to, &v, sizeof v); }
  TRAINER_INLINE static void store(double* to, V v, int64_t count) {
    std::memcpy(to, &v, static_cast<std::size_t>(count) * sizeof(double));
  }
};

/// Computed with in fp32, rounded to the nearest (ties to even) on the way back.
template <>
struct Pack<Bf16> {
  using V = Floats;
  using Scalar = float;
  static constexpr int64_t kLanes = 16;
  TRAINER_INLINE static V widen(Halves raw) { return bits_as<V>(__builtin_convertvector(raw, Words) << 16); }
  TRAINER_INLINE static Halves narrow(V v) {
    const Words bits = bits_as<Words>(v);
    const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const Words quiet_nan = Words{} + 0x7fc0;
    return __builtin_convertvector(v == v ? rounded : quiet_nan, Halves);
  }
  TRAINER_INLINE static V load(const Bf16* from) { return widen(raw_load<Halves>(from)); }
  TRAINER_INLINE static V load(const Bf16* from, int64_t count) { return widen(raw_load<Halves>(from, count)); }
  TRAINER_INLINE static void store(Bf16* to, V v) {
    const Halves raw = narrow(v);
    std::memcpy(to, &raw, sizeof raw);
  }
  TRAINER_INLINE static void store(Bf16* to, V v, int64_t count) {
    const Halves raw = narrow(v);
    std::memcpy(to, &raw, static_cast<std::size_t>(count) * sizeof(Bf16));
  }
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

/// One in the lanes that hold elements.
template <typename P>
TRAINER_INLINE typename P::V lanes(Whole) {
  return typename P::V{} + 1;
}
template <typename P>
TRAINER_INLINE typename P::V lanes(int64_t count) {
  typename P::V v{};
  for (int64_t i = 0; i < count; ++i) v[i] = 1;
  return v;
}

/// Sum of the lanes, in halves.
TRAINER_INLINE float sum(Floats v) {
  v += __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  v += __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
  return v[0];
}
TRAINER_INLINE double sum(Doubles v) {
  v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
  v += __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6);
  return v[0];
}

TRAINER_INLINE Floats smaller(Floats a, float b) { return a < b ? a : Floats{} + b; }
TRAINER_INLINE Floats larger(Floats a, float b) { return a > b ? a : Floats{} + b; }

}  // namespace
}  // namespace trainer::kernels
