/// @file The products of a low-rank adapter on the CPU: one side is a few columns wide, data may be bf16, the adapter
/// is fp32. LibTorch would copy the data to fp32, multiply with a kernel made for square matrices, and copy back.
/// Included by level.cpp alone.
///
/// In all three the lanes run along the long rows of the adapter's matrix [rank, width]; numbers of the short side are
/// repeated over a vector. Blocks are sized for 16 registers of sums.
#pragma once

#include <kernels/cpu.hpp>
#include <kernels/cpu/pack.hpp>

namespace trainer::kernels {
namespace {

/// A number of rows, columns or ranks that the compiler knows.
template <int64_t kValue>
struct Fixed {
  static constexpr int64_t kCount = kValue;
};

/// body(position, Fixed<n>) over [begin, end) in blocks of kFirst, then of the smaller sizes.
template <int64_t kFirst, int64_t... kRest, typename Body>
TRAINER_INLINE void in_blocks(int64_t begin, int64_t end, const Body& body) {
  for (; begin + kFirst <= end; begin += kFirst) body(begin, Fixed<kFirst>{});
  if constexpr (sizeof...(kRest) > 0) in_blocks<kRest...>(begin, end, body);
}

template <typename T>
struct LowRankRows {
  using P = Pack<T>;
  using V = typename P::V;
  using Scalar = typename P::Scalar;
  using Plain = Pack<Scalar>;  ///< of the adapter's own numbers

  /// low = factor x weight^T.
  static void down(const LowRank& a, void* result, int64_t begin, int64_t end) {
    const Scalar* weight = static_cast<const Scalar*>(a.weight);
    Scalar* low = static_cast<Scalar*>(result);
    for (int64_t at = begin * a.rank; at < end * a.rank; ++at) low[at] = 0;
    for (int64_t first = 0; first < a.width; first += kChunk) {
      const int64_t columns = a.width - first < kChunk ? a.width - first : kChunk;
      in_blocks<4, 1>(begin, end, [&](int64_t row, auto rows) {
        const T* x = static_cast<const T*>(a.x) + row * a.x_step + first;
        in_blocks<4, 1>(0, a.rank, [&](int64_t rank, auto ranks) {
          down_block(x, a.x_step, weight + rank * a.width + first, a.width, columns, low + row * a.rank + rank, a.rank,
                     static_cast<Scalar>(a.factor), rows, ranks);
        });
      });
    }
  }

  /// y = base + factor low weight, base may be null.
  static void up(const LowRank& a, const void* lows, void* result, int64_t begin, int64_t end) {
    for (int64_t first = 0; first < a.width; first += kChunk) {
      const int64_t last = first + kChunk < a.width ? first + kChunk : a.width;
      in_blocks<8, 1>(begin, end, [&](int64_t row, auto rows) {
        const Scalar* low = static_cast<const Scalar*>(lows) + row * a.rank;
        int64_t i = first;
        for (; i + 2 * P::kLanes <= last; i += 2 * P::kLanes)
          up_block(a, row, low, result, i, rows, Fixed<2>{}, Whole{});
        for (; i + P::kLanes <= last; i += P::kLanes) up_block(a, row, low, result, i, rows, Fixed<1>{}, Whole{});
        if (i < last) up_block(a, row, low, result, i, rows, Fixed<1>{}, last - i);
      });
    }
  }

  /// grad_weight = factor low^T x; units are kOuterColumns columns.
  static void outer(const LowRank& a, const void* lows, void* result, int64_t begin, int64_t end) {
    constexpr int64_t kRun = 32;  // of these rows, the sums stay in registers
    Scalar* sums = static_cast<Scalar*>(result);
    const int64_t from = begin * kOuterColumns;
    const int64_t to = end * kOuterColumns < a.width ? end * kOuterColumns : a.width;
    for (int64_t rank = 0; rank < a.rank; ++rank)
      for (int64_t i = from; i < to; ++i) sums[rank * a.width + i] = 0;
    for (int64_t first = from; first < to; first += kOuterColumns) {
      const int64_t last = first + kOuterColumns < to ? first + kOuterColumns : to;
      for (int64_t row = 0; row < a.rows; row += kRun) {
        const int64_t rows = a.rows - row < kRun ? a.rows - row : kRun;
        const T* x = static_cast<const T*>(a.x) + row * a.x_step;
        const Scalar* low = static_cast<const Scalar*>(lows) + row * a.rank;
        in_blocks<8, 4, 1>(0, a.rank, [&](int64_t rank, auto ranks) {
          int64_t i = first;
          for (; i + 2 * P::kLanes <= last; i += 2 * P::kLanes)
            outer_block(a, x + i, low + rank, rows, sums + rank * a.width + i, ranks, Fixed<2>{}, Whole{});
          for (; i + P::kLanes <= last; i += P::kLanes)
            outer_block(a, x + i, low + rank, rows, sums + rank * a.width + i, ranks, Fixed<1>{}, Whole{});
          if (i < last) outer_block(a, x + i, low + rank, rows, sums + rank * a.width + i, ranks, Fixed<1>{}, last - i);
        });
      }
    }
  }

 private:
  static constexpr int64_t kChunk = 2048;  ///< of these columns, the weights stay in the first cache

  template <int64_t kRows, int64_t kRanks>
  TRAINER_INLINE static void down_block(const T* x, int64_t x_step, const Scalar* weight, int64_t weight_step,
                                        int64_t columns, Scalar* low, int64_t low_step, Scalar factor, Fixed<kRows>,
                                        Fixed<kRanks>) {
    V sums[kRows][kRanks] = {};
    for_row<P::kLanes>(columns, [&](int64_t i, auto count) {
      V data[kRows];
      for (int64_t m = 0; m < kRows; ++m) data[m] = load<P>(x + m * x_step + i, count);
      for (int64_t r = 0; r < kRanks; ++r) {
        const V w = load<Plain>(weight + r * weight_step + i, count);
        for (int64_t m = 0; m < kRows; ++m) sums[m][r] += data[m] * w;
      }
    });
    for (int64_t m = 0; m < kRows; ++m)
      for (int64_t r = 0; r < kRanks; ++r) low[m * low_step + r] += factor * sum(sums[m][r]);
  }

  template <int64_t kRows, int64_t kVectors, typename Count>
  TRAINER_INLINE static void up_block(const LowRank& a, int64_t row, const Scalar* low, void* result, int64_t column,
                                      Fixed<kRows>, Fixed<kVectors>, Count count) {
    const T* base = a.x == nullptr ? nullptr : static_cast<const T*>(a.x) + row * a.x_step;
    const Scalar* weight = static_cast<const Scalar*>(a.weight);
    T* y = static_cast<T*>(result) + row * a.width;
    V sums[kRows][kVectors] = {};
    for (int64_t r = 0; r < a.rank; ++r) {
      V w[kVectors];
      for (int64_t v = 0; v < kVectors; ++v) w[v] = load<Plain>(weight + r * a.width + column + v * P::kLanes, count);
      for (int64_t m = 0; m < kRows; ++m) {
        const Scalar one = low[m * a.rank + r];
        for (int64_t v = 0; v < kVectors; ++v) sums[m][v] += one * w[v];
      }
    }
    const Scalar factor = static_cast<Scalar>(a.factor);
    for (int64_t m = 0; m < kRows; ++m)
      for (int64_t v = 0; v < kVectors; ++v) {
        V value = sums[m][v] * factor;
        const int64_t at = column + v * P::kLanes;
        if (base != nullptr) value += load<P>(base + m * a.x_step + at, count);
        store<P>(y + m * a.width + at, value, count);
      }
  }

  template <int64_t kRanks, int64_t kVectors, typename Count>
  TRAINER_INLINE static void outer_block(const LowRank& a, const T* x, const Scalar* low, int64_t rows, Scalar* to,
                                         Fixed<kRanks>, Fixed<kVectors>, Count count) {
    V sums[kRanks][kVectors] = {};
    for (int64_t m = 0; m < rows; ++m) {
      V data[kVectors];
      for (int64_t v = 0; v < kVectors; ++v) data[v] = load<P>(x + m * a.x_step + v * P::kLanes, count);
      for (int64_t r = 0; r < kRanks; ++r) {
        const Scalar one = low[m * a.rank + r];
        for (int64_t v = 0; v < kVectors; ++v) sums[r][v] += one * data[v];
      }
    }
    const Scalar factor = static_cast<Scalar>(a.factor);
    for (int64_t r = 0; r < kRanks; ++r)
      for (int64_t v = 0; v < kVectors; ++v) {
        Scalar* const at = to + r * a.width + v * P::kLanes;
        store<Plain>(at, load<Plain>(at, count) + sums[r][v] * factor, count);
      }
  }
};

}  // namespace
}  // namespace trainer::kernels
