/// @file Products of matrices on the CPU, for those that no library computes well: bf16 on a processor without
/// instructions for it, and matrices of which one side is narrow. Panels of both are widened to fp32 where they stay in
/// cache, multiplied in registers, and rounded once. After the loops of BLIS (Van Zee, van de Geijn: "BLIS", ACM TOMS
/// 41, 2015). Included by level.cpp alone.
#pragma once

#include <kernels/cpu.hpp>
#include <kernels/cpu/product_panels.hpp>

namespace trainer::kernels {
namespace {

template <typename Scalar>
struct Products {
  using Panel = Panels<Scalar>;
  using Left = typename Panel::Left;
  using V = typename Native<Scalar>::V;
  static constexpr int64_t kLanes = Native<Scalar>::kLanes, kColumns = Panel::kColumns;
  /// The sums of so many rows and two vectors of columns fill the registers: 32 of 64 bytes, or 16 smaller ones.
  static constexpr int64_t kRows = kRegisterBytes == 64 ? 14 : 6;
  static constexpr int64_t kAhead = 64;                  ///< columns of c that are asked for ahead of time
  static constexpr int64_t kLine = 64 / sizeof(Scalar);  ///< of a cache

  static void run(const Product& p, void* memory, int64_t begin, int64_t end) {
    const ProductBuffers<Scalar> buffers(p, Carve(memory));
    for (int64_t unit = begin; unit < end; ++unit) {
      const ProductTile tile = tile_of(p, unit);
      int64_t k = 0;
      do {
        const Terms terms{k, std::min(kTerms, p.k - k), k == 0, k + kTerms >= p.k};
        Panel::pack_right(p, tile, terms, buffers);
        for (int64_t row = 0; row < tile.rows; row += kBlockRows)
          multiply(p, buffers, tile, terms, row, std::min(kBlockRows, tile.rows - row));
        k += kTerms;
      } while (k < p.k);
    }
  }

 private:
  static void multiply(const Product& p, const ProductBuffers<Scalar>& buffers, const ProductTile& tile,
                       const Terms& terms, int64_t first_row, int64_t rows) {
    const Left left = Panel::left_of(p, tile, terms, first_row, rows, buffers.left);
    const bool by_rows = p.k <= kFewTerms;
    const auto part = [&](int64_t row, auto count, int64_t column) {
      alignas(64) Scalar sums[kRows * kColumns];
      const Scalar* const from = left.data + row * left.step;
      const Scalar* const right = buffers.right + column * terms.count;
      const int64_t columns = std::min(kColumns, tile.columns - column);
      if (terms.last) fetch(p, tile, first_row + row, count, column + (by_rows ? kAhead : 0));
      constexpr int64_t kHeight = decltype(count)::value;
      if (columns <= kLanes)
        sum<kHeight, 1, true>(from, left.step, right, terms.count, sums);
      else if (tile.columns <= kColumns)  // each row is used once: the next ones are asked for
        sum<kHeight, 2, true>(from, left.step, right, terms.count, sums);
      else
        sum<kHeight, 2, false>(from, left.step, right, terms.count, sums);
      put(p, buffers, tile, terms, {first_row + row, count, column, columns}, sums);
    };
    const auto columns_of = [&](const auto& body) {
      for (int64_t column = 0; column < tile.columns; column += kColumns) body(column);
    };
    if (by_rows)
      in_some_rows(rows,
                   [&](int64_t row, auto count) { columns_of([&](int64_t column) { part(row, count, column); }); });
    else
      columns_of(
          [&](int64_t column) { in_some_rows(rows, [&](int64_t row, auto count) { part(row, count, column); }); });
  }

  /// in_rows() with the sizes that fit the registers.
  template <typename Body>
  TRAINER_INLINE static void in_some_rows(int64_t rows, const Body& body) {
    if constexpr (kRows > 8) {
      if (rows > kRows && rows <= 16) return in_rows<8, 4, 2, 1>(rows, body);  // two halves are less than 14 and a rest
      in_rows<kRows, 8, 4, 2, 1>(rows, body);
    } else {
      in_rows<kRows, 4, 2, 1>(rows, body);
    }
  }
  /// body(row, size) over [0, rows) in blocks of the first size, then of the smaller ones.
  template <int64_t kFirst, int64_t... kRest, typename Body>
  TRAINER_INLINE static void in_rows(int64_t rows, const Body& body, int64_t row = 0) {
    for (; row + kFirst <= rows; row += kFirst) body(row, std::integral_constant<int64_t, kFirst>());
    if constexpr (sizeof...(kRest) > 0) in_rows<kRest...>(rows, body, row);
  }

  /// sums [kHeight, kColumns] = left [kHeight, terms] right [terms, kVectors vectors].
  template <int64_t kHeight, int64_t kVectors, bool kFetches>
  static void sum(const Scalar* left, int64_t step, const Scalar* right, int64_t terms, Scalar* sums) {
    V total[kHeight][kVectors];  // in registers: every loop over it is unrolled
#pragma GCC unroll 14
    for (int64_t row = 0; row < kHeight; ++row)
#pragma GCC unroll 2
      for (int64_t v = 0; v < kVectors; ++v) total[row][v] = V{};
    for (int64_t k = 0; k < terms; ++k) {
      if constexpr (kFetches)
        if (k % kLine == 0)
          for (int64_t row = 0; row < kHeight; ++row) __builtin_prefetch(left + (kHeight + row) * step + k);
      V columns[kVectors];
#pragma GCC unroll 2
      for (int64_t v = 0; v < kVectors; ++v) columns[v] = Widened<Scalar>::load(right + k * kColumns + v * kLanes);
#pragma GCC unroll 14
      for (int64_t row = 0; row < kHeight; ++row) {
        const V one = repeated(left[row * step + k]);
#pragma GCC unroll 2
        for (int64_t v = 0; v < kVectors; ++v) total[row][v] += one * columns[v];
      }
    }
#pragma GCC unroll 14
    for (int64_t row = 0; row < kHeight; ++row)
#pragma GCC unroll 2
      for (int64_t v = 0; v < kVectors; ++v) Widened<Scalar>::store(sums + row * kColumns + v * kLanes, total[row][v]);
  }

  /// Asks for what finish() will write and add, ahead of time.
  TRAINER_INLINE static void fetch(const Product& p, const ProductTile& tile, int64_t row, int64_t rows,
                                   int64_t column) {
    const int64_t size = p.type == Dtype::bf16 ? 2 : sizeof(Scalar);
    const auto at = [&](const void* data, int64_t batch_step, int64_t row_step) {
      return static_cast<const char*>(data) +
             (tile.batch * batch_step + (tile.row + row) * row_step + tile.column + column) * size;
    };
    const char* const to = at(p.c, p.c_batch_step, p.c_step);
    for (int64_t i = 0; i < rows; ++i) __builtin_prefetch(to + i * p.c_step * size, 1);
    if (p.base.data == nullptr || p.base.row_step == 0) return;
    const char* const from = at(p.base.data, p.base.batch_step, p.base.row_step);
    for (int64_t i = 0; i < rows; ++i) __builtin_prefetch(from + i * p.base.row_step * size);
  }

  /// Rows and columns of the tile that were summed.
  struct Part {
    int64_t row, rows, column, columns;
  };
  /// Adds the sums to those of the terms before; the last go to c.
  static void put(const Product& p, const ProductBuffers<Scalar>& buffers, const ProductTile& tile, const Terms& terms,
                  const Part& part, Scalar* sums) {
    Scalar* const before = buffers.sums + part.column * tile.rows + part.row * kColumns;
    if (!terms.first)
      for (int64_t i = 0; i < part.rows * kColumns; i += kLanes)
        Widened<Scalar>::store(sums + i, Widened<Scalar>::load(sums + i) + Widened<Scalar>::load(before + i));
    if (!terms.last)
      std::memcpy(before, sums, static_cast<std::size_t>(part.rows * kColumns) * sizeof(Scalar));
    else
      Panel::with_type(p.type, [&](auto type) { finish<decltype(type)>(p, tile, part, sums); });
  }

  template <typename T>
  static void finish(const Product& p, const ProductTile& tile, const Part& part, const Scalar* sums) {
    const int64_t at_row = tile.row + part.row, at_column = tile.column + part.column;
    T* to = static_cast<T*>(p.c) + tile.batch * p.c_batch_step + at_row * p.c_step + at_column;
    const T* base = static_cast<const T*>(p.base.data);
    if (base != nullptr) base += tile.batch * p.base.batch_step + at_row * p.base.row_step + at_column;
    const auto factor = static_cast<Scalar>(p.factor);
    for (int64_t row = 0; row < part.rows; ++row, sums += kColumns, to += p.c_step) {
      int64_t i = 0;
      for (; i + kLanes <= part.columns; i += kLanes) {
        V y = unfused(Widened<Scalar>::load(sums + i) * factor);
        if (base != nullptr) y += Widened<T>::load(base + i);
        Widened<T>::store(to + i, y);
      }
      for (; i < part.columns; ++i) {
        Scalar y = unfused(sums[i] * factor);
        if (base != nullptr) y += Widened<T>::one(base[i]);
        to[i] = Widened<T>::narrow(y);
      }
      if (base != nullptr) base += p.base.row_step;
    }
  }
};

}  // namespace
}  // namespace trainer::kernels
