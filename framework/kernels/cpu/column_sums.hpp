/// @file Sums over the rows of a sample, column by column, on the CPU. Rows are read in long pieces, as memory likes
/// it, and the sums stay in the first cache. Included by the kernels of this folder alone.
#pragma once

#include <kernels/cpu.hpp>
#include <kernels/cpu/pack.hpp>

#include <algorithm>

namespace trainer::kernels {
namespace {

constexpr int64_t kMostColumns = 8 * kColumns;  ///< that are summed together

/// body(sample, first column, number of columns) for units of kColumns columns of all samples, neighbours together.
template <typename Body>
TRAINER_INLINE void for_columns(int64_t width, int64_t begin, int64_t end, const Body& body) {
  const int64_t chunks = (width + kColumns - 1) / kColumns;
  for (int64_t unit = begin, taken = 0; unit < end; unit += taken) {
    const int64_t sample = unit / chunks, chunk = unit % chunks, first = chunk * kColumns;
    taken = std::min({kMostColumns / kColumns, chunks - chunk, end - unit});
    body(sample, first, std::min(width - first, taken * kColumns));
  }
}

/// kSums sums of each of `columns` columns, over the rows of a sample in runs that are added up one after the other.
template <typename P, std::size_t kSums>
struct ColumnSums {
  using V = typename P::V;
  using Scalar = typename P::Scalar;
  using Plain = Pack<Scalar>;
  Scalar totals[kSums][kMostColumns] = {};

  /// add(V (&sums)[kSums], row, column, count) adds what a row gives.
  template <typename Add>
  TRAINER_INLINE void over(int64_t begin, int64_t end, int64_t columns, const Add& add) {
    constexpr int64_t kRun = 64, kTogether = 4;  // four rows for each time that sums are loaded
    for (int64_t run = begin; run < end; run += kRun) {
      Scalar parts[kSums][kMostColumns] = {};
      const int64_t last = std::min(end, run + kRun);
      int64_t row = run;
      for (; row + kTogether <= last; row += kTogether) add_rows<kTogether>(parts, row, columns, add);
      for (; row < last; ++row) add_rows<1>(parts, row, columns, add);
      for (std::size_t s = 0; s < kSums; ++s)
        for (int64_t i = 0; i < columns; i += P::kLanes)
          Plain::store(totals[s] + i, Plain::load(totals[s] + i) + Plain::load(parts[s] + i));
    }
  }

 private:
  template <int64_t kRows, typename Add>
  TRAINER_INLINE static void add_rows(Scalar (&parts)[kSums][kMostColumns], int64_t row, int64_t columns,
                                      const Add& add) {
    for_row<P::kLanes>(columns, [&](int64_t i, auto count) {
      V sums[kSums];
      for (std::size_t s = 0; s < kSums; ++s) sums[s] = Plain::load(parts[s] + i);
      for (int64_t r = 0; r < kRows; ++r) add(sums, row + r, i, count);
      for (std::size_t s = 0; s < kSums; ++s) Plain::store(parts[s] + i, sums[s]);
    });
  }
};

}  // namespace
}  // namespace trainer::kernels
