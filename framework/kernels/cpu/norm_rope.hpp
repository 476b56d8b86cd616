/// @file RMSNorm of the rows of attention heads, then their rotation by position, on the CPU. Keeps x alone. Included
/// by level.cpp alone.
#pragma once

#include <kernels/cpu.hpp>
#include <kernels/cpu/pack.hpp>

#include <cmath>

namespace trainer::kernels {
namespace {

/// Of each pair of lanes.
struct Evens {
  static constexpr int of(int lane) { return lane & ~1; }
};
struct Odds {
  static constexpr int of(int lane) { return lane | 1; }
};
using Swapped = Across<1>;

/// Turns by the angle, or back: (a, b) -> (a cos - b sin, a sin + b cos), back with -sin.
template <typename V>
struct Turn {
  V cosine, sine;  ///< sine: negative in even lanes
  TRAINER_INLINE explicit Turn(V table) : cosine(shuffled<Evens>(table)), sine(shuffled<Odds>(table)) {
    Element<V> signs[kLanesOf<V>];
    for (std::size_t i = 0; i < kLanesOf<V>; ++i) signs[i] = i % 2 == 0 ? -1 : 1;
    sine *= raw_load<V>(signs);
  }
  TRAINER_INLINE V forth(V v) const {
    const V straight = v * cosine;
    return straight + shuffled<Swapped>(v) * sine;
  }
  TRAINER_INLINE V back(V v) const {
    const V straight = v * cosine;
    return straight - shuffled<Swapped>(v) * sine;
  }
};

/// A row of the table as numbers of the data's kind.
template <typename P, typename Count>
TRAINER_INLINE typename P::V table_load(const float* table, Count count) {
  using Scalar = typename P::Scalar;
  if constexpr (std::is_same_v<Scalar, float>) {
    return load<Pack<float>>(table, count);
  } else {
    Scalar each[P::kLanes] = {};
    int64_t n = P::kLanes;
    if constexpr (!std::is_same_v<Count, Whole>) n = count;
    for (int64_t i = 0; i < n; ++i) each[i] = table[i];
    return raw_load<typename P::V>(each);
  }
}

template <typename T>
struct HeadRows {
  using P = Pack<T>;
  using V = typename P::V;
  using Scalar = typename P::Scalar;

  static void forward(const NormRope& a, void* result, int64_t begin, int64_t end) {
    const T* weight = static_cast<const T*>(a.weight);
    for_tokens(a, begin, end, [&](const T* x, const float* table, int64_t y_at, int64_t) {
      T* y = static_cast<T*>(result) + y_at;
      const Scalar inverse = inverse_of(x, a);
      for_row<P::kLanes>(a.width, [&](int64_t i, auto count) {
        const Turn<V> turn(table_load<P>(table + i, count));
        store<P>(y + i, turn.forth(load<P>(x + i, count) * inverse * load<P>(weight + i, count)), count);
      });
    });
  }

  /// With n = x / rms and u = weight (grad turned back): grad_x = (u - n mean(u n)) / rms.
  static void grad(const NormRope& a, const void* grads, void* result, int64_t begin, int64_t end) {
    const T* weight = static_cast<const T*>(a.weight);
    for_tokens(a, begin, end, [&](const T* x, const float* table, int64_t g_at, int64_t dense_at) {
      const T* g = static_cast<const T*>(grads) + g_at;
      T* grad_x = static_cast<T*>(result) + dense_at;
      const Scalar inverse = inverse_of(x, a);
      const auto turned_back = [&](int64_t i, auto count) {
        const Turn<V> turn(table_load<P>(table + i, count));
        return turn.back(load<P>(g + i, count)) * load<P>(weight + i, count);
      };
      V products{};
      for_row<P::kLanes>(a.width, [&](int64_t i, auto count) {
        products += turned_back(i, count) * (load<P>(x + i, count) * inverse);
      });
      const Scalar mean = sum(products) / static_cast<Scalar>(a.width);
      for_row<P::kLanes>(a.width, [&](int64_t i, auto count) {
        const V u = turned_back(i, count), normal = load<P>(x + i, count) * inverse;
        store<P>(grad_x + i, (u - normal * mean) * inverse, count);
      });
    });
  }

  /// Sum over tokens and heads of (grad turned back) n.
  static void sums(const NormRope& a, const void* grads, void* partial, int64_t begin, int64_t end) {
    const int64_t tokens = a.samples * a.tokens;
    for (int64_t unit = begin; unit < end; ++unit) {
      Scalar* total = static_cast<Scalar*>(partial) + unit * a.width;
      for (int64_t i = 0; i < a.width; ++i) total[i] = 0;
      const int64_t first = unit * kTokens, last = first + kTokens < tokens ? first + kTokens : tokens;
      for_tokens(a, first, last, [&](const T* x, const float* table, int64_t g_at, int64_t) {
        const T* g = static_cast<const T*>(grads) + g_at;
        const Scalar inverse = inverse_of(x, a);
        for_row<P::kLanes>(a.width, [&](int64_t i, auto count) {
          const Turn<V> turn(table_load<P>(table + i, count));
          const V product = turn.back(load<P>(g + i, count)) * (load<P>(x + i, count) * inverse);
          using Sums = Pack<Scalar>;
          store<Sums>(total + i, load<Sums>(total + i, count) + product, count);
        });
      });
    }
  }

 private:
  TRAINER_INLINE static Scalar inverse_of(const T* x, const NormRope& a) {
    V squares{};
    for_row<P::kLanes>(a.width, [&](int64_t i, auto count) {
      const V v = load<P>(x + i, count);
      squares += v * v;
    });
    return 1 / std::sqrt(sum(squares) / static_cast<Scalar>(a.width) + static_cast<Scalar>(a.eps));
  }

  /// body(x, table, place among the turned rows, place in a dense tensor) for every head of the tokens.
  template <typename Body>
  TRAINER_INLINE static void for_tokens(const NormRope& a, int64_t begin, int64_t end, const Body& body) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t sample = unit / a.tokens, token = unit % a.tokens;
      const T* x = static_cast<const T*>(a.x) + sample * a.x_sample + token * a.x_token;
      const float* table = a.table + sample * a.table_sample + token * a.width;
      for (int64_t head = 0; head < a.heads; ++head)
        body(x + head * a.width, table, sample * a.y_sample + token * a.y_token + head * a.width,
             (unit * a.heads + head) * a.width);
    }
  }
};

}  // namespace
}  // namespace trainer::kernels
