/// @file x + gate y on the CPU, gate one row a sample, and its gradients. Included by level.cpp alone.
#pragma once

#include <kernels/cpu.hpp>
#include <kernels/cpu/pack.hpp>

namespace trainer::kernels {
namespace {

template <typename T>
struct GatedRows {
  using P = Pack<T>;
  using V = typename P::V;

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

  /// Of the gate: over the rows of one sample, in runs that are added up one after the other.
  static void sums(const GatedResidual& a, const void* grads, void* result, int64_t begin, int64_t end) {
    const int64_t chunks = (a.width + kColumns - 1) / kColumns;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t sample = unit / chunks, first = unit % chunks * kColumns;
      const int64_t columns = a.width - first < kColumns ? a.width - first : kColumns;
      for_row<P::kLanes>(columns, [&](int64_t i, auto count) {
        store<P>(static_cast<T*>(result) + sample * a.width + first + i,
                 column_sums(a, static_cast<const T*>(grads), sample, first + i, count), count);
      });
    }
  }

 private:
  TRAINER_INLINE static const T* gate_of(const GatedResidual& a, int64_t row) {
    return static_cast<const T*>(a.gate) + row / a.rows_per_sample * a.gate_step;
  }
  template <typename Count>
  TRAINER_INLINE static V column_sums(const GatedResidual& a, const T* grads, int64_t sample, int64_t column,
                                      Count count) {
    constexpr int64_t kRun = 64;
    const int64_t begin = sample * a.rows_per_sample, end = begin + a.rows_per_sample;
    V total{};
    for (int64_t run = begin; run < end; run += kRun) {
      V part{};
      for (int64_t row = run; row < end && row < run + kRun; ++row) {
        const int64_t at = row * a.width + column;
        part += load<P>(grads + at, count) * load<P>(static_cast<const T*>(a.y) + at, count);
      }
      total += part;
    }
    return total;
  }
};

}  // namespace
}  // namespace trainer::kernels
