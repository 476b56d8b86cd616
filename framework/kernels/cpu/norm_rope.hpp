/// @file RMSNorm of the rows of attention heads, then their rotation by position, on the CPU. Keeps x alone. Included
/// by level.cpp alone.
#pragma once

#include <kernels/cpu.hpp>
#include <kernels/cpu/pack.hpp>

#include <cmath>

namespace trainer::kernels {
namespace {

/// Even lanes, odd lanes and the two of each pair exchanged.
TRAINER_INLINE Floats evens(Floats v) {
  return __builtin_shufflevector(v, v, 0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14);
}
TRAINER_INLINE Floats odds(Floats v) {
  return __builtin_shufflevector(v, v, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15);
}
TRAINER_INLINE Floats swapped(Floats v) {
  return __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
}
TRAINER_INLINE Doubles evens(Doubles v) { return __builtin_shufflevector(v, v, 0, 0, 2, 2, 4, 4, 6, 6); }
TRAINER_INLINE Doubles odds(Doubles v) { return __builtin_shufflevector(v, v, 1, 1, 3, 3, 5, 5, 7, 7); }
TRAINER_INLINE Doubles swapped(Doubles v) { return __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6); }

/// Turns by the angle, or back: (a, b) -> (a cos - b sin, a sin + b cos), back with -sin.
template <typename V>
struct Turn {
  V cosine, sine;  ///< sine: negative in even lanes
  TRAINER_INLINE explicit Turn(V table) : cosine(evens(table)), sine(odds(table)) {
    V sign;
    for (std::size_t i = 0; i < sizeof(V) / sizeof(sign[0]); ++i) sign[i] = i % 2 == 0 ? -1 : 1;
    sine *= sign;
  }
  TRAINER_INLINE V forth(V v) const { return v * cosine + swapped(v) * sine; }
  TRAINER_INLINE V back(V v) const { return v * cosine - swapped(v) * sine; }
};

template <typename V, int64_t kLanes, typename Count>
TRAINER_INLINE V table_load(const float* table, Count count) {
  V v{};
  int64_t n = kLanes;
  if constexpr (!std::is_same_v<Count, Whole>) n = count;
  if constexpr (std::is_same_v<Count, Whole> && kLanes == 16) {
    v = raw_load<V>(table);
  } else {
    for (int64_t i = 0; i < n; ++i) v[i] = table[i];
  }
  return v;
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
        const Turn<V> turn(table_load<V, P::kLanes>(table + i, count));
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
        const Turn<V> turn(table_load<V, P::kLanes>(table + i, count));
        return turn.back(load<P>(g + i, count)) * load<P>(weight + i, count);
      };
      V products{};
      for_row<P::kLanes>(a.width, [&](int64_t i, auto count) {
        products += turned_back(i, count) * (load<P>(x + i, count) * inverse);
      });
      const Scalar mean = sum(products) / static_cast<Scalar>(a.width);
      for_row<P::kLanes>(a.width, [&](int64_t i, auto count) {
        const V normal = load<P>(x + i, count) * inverse;
        store<P>(grad_x + i, (turned_back(i, count) - normal * mean) * inverse, count);
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
          const Turn<V> turn(table_load<V, P::kLanes>(table + i, count));
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
