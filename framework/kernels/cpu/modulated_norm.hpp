/// @file LayerNorm(x) (1 + scale) + shift on the CPU: mean and deviation of a row are found in two passes over it, in
/// forward and again in backward, so that nothing but x is kept. Included by level.cpp alone.
#pragma once

#include <kernels/cpu/column_sums.hpp>

#include <cmath>

namespace trainer::kernels {
namespace {

template <typename Scalar>
struct Moments {
  Scalar mean, inverse;  ///< 1 / sqrt(variance + eps)
};

/// `later(i)` asks for what later passes need.
template <typename P, typename T, typename Later>
TRAINER_INLINE Moments<typename P::Scalar> moments_of(const T* x, int64_t width, double eps, const Later& later) {
  using V = typename P::V;
  using Scalar = typename P::Scalar;
  V total{};
  for_row<P::kLanes>(width, [&](int64_t i, auto count) {
    fetch(x + width + i), later(i);
    total += load<P>(x + i, count);
  });
  const Scalar mean = sum(total) / static_cast<Scalar>(width);
  V squares{};
  for_row<P::kLanes>(width, [&](int64_t i, auto count) {
    const V off = (load<P>(x + i, count) - mean) * lanes<P>(count);
    squares += off * off;
  });
  return {mean, 1 / std::sqrt(sum(squares) / static_cast<Scalar>(width) + static_cast<Scalar>(eps))};
}

template <typename T>
struct NormRows {
  using P = Pack<T>;
  using V = typename P::V;
  using Scalar = typename P::Scalar;

  static void forward(const ModulatedNorm& a, void* result, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t sample = row / a.rows_per_sample;
      const T* x = static_cast<const T*>(a.x) + row * a.width;
      const T* shift = static_cast<const T*>(a.shift) + sample * a.shift_step;
      const T* scale = static_cast<const T*>(a.scale) + sample * a.scale_step;
      T* y = static_cast<T*>(result) + row * a.width;
      const Moments<Scalar> m = moments_of<P>(x, a.width, a.eps, [&](int64_t i) { fetch_to_write(y + i); });
      for_row<P::kLanes>(a.width, [&](int64_t i, auto count) {
        const V normal = (load<P>(x + i, count) - m.mean) * m.inverse;
        store<P>(y + i, normal * (load<P>(scale + i, count) + 1) + load<P>(shift + i, count), count);
      });
    }
  }

  /// With n = (x - mean) / deviation and u = grad (1 + scale): grad_x = (u - mean(u) - n mean(u n)) / deviation.
  static void grad(const ModulatedNorm& a, const void* grads, void* result, void* moments, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(a.x) + row * a.width;
      const T* scale = static_cast<const T*>(a.scale) + row / a.rows_per_sample * a.scale_step;
      const T* g = static_cast<const T*>(grads) + row * a.width;
      T* grad_x = static_cast<T*>(result) + row * a.width;
      const Moments<Scalar> m =
          moments_of<P>(x, a.width, a.eps, [&](int64_t i) { fetch(g + i), fetch_to_write(grad_x + i); });
      if (moments != nullptr) static_cast<Moments<Scalar>*>(moments)[row] = m;
      V sum_u{}, sum_un{};
      for_row<P::kLanes>(a.width, [&](int64_t i, auto count) {
        const V u = load<P>(g + i, count) * (load<P>(scale + i, count) + 1);  // lanes beyond the row: g is 0
        sum_u += u;
        sum_un += u * ((load<P>(x + i, count) - m.mean) * m.inverse);
      });
      const Scalar mean_u = sum(sum_u) / static_cast<Scalar>(a.width);
      const Scalar mean_un = sum(sum_un) / static_cast<Scalar>(a.width);
      for_row<P::kLanes>(a.width, [&](int64_t i, auto count) {
        const V normal = (load<P>(x + i, count) - m.mean) * m.inverse;
        const V u = load<P>(g + i, count) * (load<P>(scale + i, count) + 1);
        store<P>(grad_x + i, (u - mean_u - normal * mean_un) * m.inverse, count);
      });
    }
  }

  /// Of shift and scale.
  static void sums(const ModulatedNorm& a, const void* grads, const void* moments, void* grad_shift, void* grad_scale,
                   int64_t begin, int64_t end) {
    for_columns(a.width, begin, end, [&](int64_t sample, int64_t first, int64_t columns) {
      const T *g = static_cast<const T*>(grads) + first, *x = static_cast<const T*>(a.x) + first;
      ColumnSums<P, 2> sums;
      sums.over(sample * a.rows_per_sample, (sample + 1) * a.rows_per_sample, columns,
                [&](V(&sum)[2], int64_t row, int64_t i, auto count) {
                  const Moments<Scalar> m = static_cast<const Moments<Scalar>*>(moments)[row];
                  const int64_t at = row * a.width + i;
                  fetch(g + at + 4 * a.width), fetch(x + at + 4 * a.width);
                  const V grad = load<P>(g + at, count);
                  sum[0] += grad;
                  sum[1] += grad * ((load<P>(x + at, count) - m.mean) * m.inverse);
                });
      void* const results[] = {grad_shift, grad_scale};
      for (int s = 0; s < 2; ++s) {
        if (results[s] == nullptr) continue;
        T* to = static_cast<T*>(results[s]) + sample * a.width + first;
        for_row<P::kLanes>(columns, [&](int64_t i, auto count) {
          store<P>(to + i, load<Pack<Scalar>>(sums.totals[s] + i, count), count);
        });
      }
    });
  }
};

}  // namespace
}  // namespace trainer::kernels
