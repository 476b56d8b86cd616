/// @file Vectors of 64 bytes for the kernels of this folder: GCC's and clang's vector types where a register of the
/// level is as long, halves that each stay in registers where it is not; the compiler would lower a longer vector
/// through memory. One source for every instruction set, and lanes that are summed in the same order on all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#define TRAINER_INLINE [[gnu::always_inline]] inline

namespace trainer::kernels {
namespace {

#if defined(__AVX512F__)
constexpr std::size_t kRegisterBytes = 64;
#elif defined(__AVX2__)
constexpr std::size_t kRegisterBytes = 32;
#else
constexpr std::size_t kRegisterBytes = 16;
#endif

template <typename H>
struct Two {
  H low, high;
};
template <typename V>
constexpr bool kIsTwo = false;
template <typename H>
constexpr bool kIsTwo<Two<H>> = true;

/// kCount numbers of type T; kBytes: of the longest numbers that are computed with beside them.
template <typename T, std::size_t kCount, std::size_t kBytes, bool kFits = (kCount * kBytes <= kRegisterBytes)>
struct Lanes {
  using Type = Two<typename Lanes<T, kCount / 2, kBytes>::Type>;
};
template <typename T, std::size_t kCount, std::size_t kBytes>
struct Lanes<T, kCount, kBytes, true> {
  using Type __attribute__((vector_size(kCount * sizeof(T)))) = T;
};
using Floats = Lanes<float, 16, 4>::Type;
using Doubles = Lanes<double, 8, 8>::Type;
using Words = Lanes<uint32_t, 16, 4>::Type;
using Integers = Lanes<int32_t, 16, 4>::Type;
using Halves = Lanes<uint16_t, 16, 4>::Type;

template <typename V>
struct ElementOf {
  using Type = std::remove_cvref_t<decltype(std::declval<V&>()[0])>;
};
template <typename H>
struct ElementOf<Two<H>> : ElementOf<H> {};
template <typename V>
using Element = typename ElementOf<V>::Type;
template <typename V>
constexpr std::size_t kLanesOf = sizeof(V) / sizeof(Element<V>);

#define TRAINER_IN_HALVES(op)                                               \
  template <typename H>                                                     \
  TRAINER_INLINE auto operator op(Two<H> a, Two<H> b) {                     \
    return Two<decltype(a.low op b.low)>{a.low op b.low, a.high op b.high}; \
  }                                                                         \
  template <typename H>                                                     \
  TRAINER_INLINE auto operator op(Two<H> a, Element<H> b) {                 \
    return Two<decltype(a.low op b)>{a.low op b, a.high op b};              \
  }                                                                         \
  template <typename H>                                                     \
  TRAINER_INLINE auto operator op(Element<H> a, Two<H> b) {                 \
    return Two<decltype(a op b.low)>{a op b.low, a op b.high};              \
  }
TRAINER_IN_HALVES(+)
TRAINER_IN_HALVES(-)
TRAINER_IN_HALVES(*)
TRAINER_IN_HALVES(/)
TRAINER_IN_HALVES(&)
TRAINER_IN_HALVES(|)
TRAINER_IN_HALVES(<<)
TRAINER_IN_HALVES(>>)
TRAINER_IN_HALVES(<)
TRAINER_IN_HALVES(>)
TRAINER_IN_HALVES(==)
#undef TRAINER_IN_HALVES
template <typename H>
TRAINER_INLINE Two<H> operator-(Two<H> a) {
  return {-a.low, -a.high};
}
template <typename H, typename Other>
TRAINER_INLINE Two<H>& operator+=(Two<H>& a, Other b) {
  return a = a + b;
}
template <typename H, typename Other>
TRAINER_INLINE Two<H>& operator*=(Two<H>& a, Other b) {
  return a = a * b;
}

/// Where a comparison holds `yes`, else `no`.
template <typename Mask, typename V>
TRAINER_INLINE V select(Mask mask, V yes, V no) {
  if constexpr (kIsTwo<V>)
    return {select(mask.low, yes.low, no.low), select(mask.high, yes.high, no.high)};
  else
    return mask ? yes : no;
}

/// The same number in every lane.
template <typename V>
TRAINER_INLINE V all(Element<V> number) {
  return V{} + number;
}

/// The same bits as another type of that size.
template <typename To, typename From>
TRAINER_INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  if constexpr (kIsTwo<From>) {
    using H = decltype(To::low);
    return {bits_as<H>(from.low), bits_as<H>(from.high)};
  } else {
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
  }
}

/// Each number as one of another type.
template <typename To, typename From>
TRAINER_INLINE To convert(From from) {
  if constexpr (kIsTwo<From>) {
    using H = decltype(To::low);
    return {convert<H>(from.low), convert<H>(from.high)};
  } else {
    return __builtin_convertvector(from, To);
  }
}

/// Memory to registers and back, at any alignment; with a count of bytes, the rest is zero and not touched in memory.
template <typename V>
TRAINER_INLINE V raw_load(const void* from) {
  if constexpr (kIsTwo<V>) {
    using H = decltype(V::low);
    return {raw_load<H>(from), raw_load<H>(static_cast<const std::byte*>(from) + sizeof(H))};
  } else {
    V v;
    std::memcpy(&v, from, sizeof v);
    return v;
  }
}
template <typename V>
TRAINER_INLINE V raw_load(const void* from, int64_t bytes) {
  std::byte whole[sizeof(V)] = {};
  std::memcpy(whole, from, static_cast<std::size_t>(bytes));
  return raw_load<V>(whole);
}
template <typename V>
TRAINER_INLINE void raw_store(void* to, V v) {
  if constexpr (kIsTwo<V>) {
    raw_store(to, v.low);
    raw_store(static_cast<std::byte*>(to) + sizeof(v.low), v.high);
  } else {
    std::memcpy(to, &v, sizeof v);
  }
}
template <typename V>
TRAINER_INLINE void raw_store(void* to, V v, int64_t bytes) {
  std::byte whole[sizeof(V)];
  raw_store(whole, v);
  std::memcpy(to, whole, static_cast<std::size_t>(bytes));
}

/// Lanes from lane_of(lane), within pairs of them alone; lane_of: a constant's type.
template <typename LaneOf, typename V, int... kLane>
TRAINER_INLINE V shuffled(V v, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(v, v, LaneOf::of(kLane)...);
}
template <typename LaneOf, typename V>
TRAINER_INLINE V shuffled(V v) {
  if constexpr (kIsTwo<V>)
    return {shuffled<LaneOf>(v.low), shuffled<LaneOf>(v.high)};
  else
    return shuffled<LaneOf>(v, std::make_integer_sequence<int, kLanesOf<V>>());
}
template <int kStep>
struct Across {
  static constexpr int of(int lane) { return lane ^ kStep; }
};

/// All lanes joined by `join`, in halves: lane i with lane i + 8, those with each other's fourth neighbour, and so on.
template <int kStep, typename V, typename Join>
TRAINER_INLINE Element<V> joined_from(V v, const Join& join) {
  v = join(v, shuffled<Across<kStep>>(v));
  if constexpr (kStep > 1)
    return joined_from<kStep / 2>(v, join);
  else
    return v[0];
}
template <typename V, typename Join>
TRAINER_INLINE Element<V> joined(V v, const Join& join) {
  if constexpr (kIsTwo<V>)
    return joined(join(v.low, v.high), join);
  else
    return joined_from<static_cast<int>(kLanesOf<V>) / 2>(v, join);
}
template <typename V>
TRAINER_INLINE Element<V> sum(V v) {
  return joined(v, [](auto a, auto b) { return a + b; });
}

template <typename V>
TRAINER_INLINE V smaller(V a, V b) {
  return select(a < b, a, b);
}
template <typename V>
TRAINER_INLINE V larger(V a, V b) {
  return select(a > b, a, b);
}

}  // namespace
}  // namespace trainer::kernels
