/// @file x + gate y on the CPU, gate one row a sample, and its gradients. Included by level.cpp alone.
#pragma once

#include <kernels/cpu/column_sums.hpp>

namespace trainer::kernels {
namespace {

template <typename T>
struct GatedRows {
  using P = Pack<T>;
  using V = typename P::V;
  using Scalar = typename P::Scalar;

  static void forward(const GatedResidual& a, void* result, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = row * a.width;
      const T *x = static_cast<const T*>(a.x) + first, *y = static_cast<const T*>(a.y) + first, *gate = gate_of(a, row);
      T* to = static_cast<T*>(result) + first;
      for_row<P::kLanes>(a.width, [&](int64_t i, auto count) {
        fetch(x + i, kAheadBytes), fetch(y + i, kAheadBytes), fetch_to_write(to + i, kAheadBytes);
        store<P>(to + i, load<P>(x + i, count) + load<P>(gate + i, count) * load<P>(y + i, count), count);
      });
    }
  }

  static void grad(const GatedResidual& a, const void* grads, void* result, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T *g = static_cast<const T*>(grads) + row * a.width, *gate = gate_of(a, row);
      T* to = static_cast<T*>(result) + row * a.width;
      for_row<P::kLanes>(a.width, [&](int64_t i, auto count) {
        fetch(g + i, kAheadBytes), fetch_to_write(to + i, kAheadBytes);
        store<P>(to + i, load<P>(g + i, count) * load<P>(gate + i, count), count);
      });
    }
  }

  /// Of the gate.
  static void sums(const GatedResidual& a, const void* grads, void* result, int64_t begin, int64_t end) {
    for_columns(a.width, begin, end, [&](int64_t sample, int64_t first, int64_t columns) {
      const T *g = static_cast<const T*>(grads) + first, *y = static_cast<const T*>(a.y) + first;
      ColumnSums<P, 1> sums;
      sums.over(sample * a.rows_per_sample, (sample + 1) * a.rows_per_sample, columns,
                [&](V(&sum)[1], int64_t row, int64_t i, auto count) {
                  const int64_t at = row * a.width + i;
                  fetch(g + at + 4 * a.width), fetch(y + at + 4 * a.width);
                  sum[0] += load<P>(g + at, count) * load<P>(y + at, count);
                });
      T* to = static_cast<T*>(result) + sample * a.width + first;
      for_row<P::kLanes>(columns, [&](int64_t i, auto count) {
        store<P>(to + i, load<Pack<Scalar>>(sums.totals[0] + i, count), count);
      });
    });
  }

 private:
  TRAINER_INLINE static const T* gate_of(const GatedResidual& a, int64_t row) {
    return static_cast<const T*>(a.gate) + row / a.rows_per_sample * a.gate_step;
  }
};

}  // namespace
}  // namespace trainer::kernels
