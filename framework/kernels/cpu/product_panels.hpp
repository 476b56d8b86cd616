/// @file Panels of the two matrices of a product, widened to where they stay in cache. Included by product.hpp alone.
#pragma once

#include <kernels/cpu/codes.hpp>
#include <kernels/cpu/native.hpp>
#include <kernels/cpu/product_buffers.hpp>

namespace trainer::kernels {
namespace {

/// A run of terms.
struct Terms {
  int64_t begin, count;
  bool first, last;
};

template <typename Scalar>
struct Panels {
  static constexpr int64_t kColumns = 2 * Native<Scalar>::kLanes;  ///< of a strip
  static constexpr int64_t kRun = 8;                               ///< rows of b that are copied together

  struct Left {
    const Scalar* data;
    int64_t step;
  };

  template <typename Body>
  TRAINER_INLINE static void with_type(Dtype dtype, const Body& body) {
    if constexpr (sizeof(Scalar) == sizeof(double))
      body(double{});
    else if (dtype == Dtype::f32)
      body(float{});
    else
      body(Bf16{});
  }

  /// The terms of the tile's columns, in strips.
  static void pack_right(const Product& p, const ProductTile& tile, const Terms& terms,
                         const ProductBuffers<Scalar>& buffers) {
    Scalar* const to = buffers.right;
    const bool coded = p.codes != nullptr;
    const Matrix b = coded ? expanded(*p.codes, tile, terms, buffers.expanded) : p.b;
    with_type(b.dtype, [&](auto type) {
      using T = decltype(type);
      const T* const from =
          static_cast<const T*>(b.data) +
          (coded ? 0 : tile.batch * b.batch_step + terms.begin * b.row_step + tile.column * b.column_step);
      const int64_t strip = terms.count * kColumns, rest = tile.columns % kColumns, whole = tile.columns - rest;
      if (rest != 0) std::memset(to + whole * terms.count, 0, static_cast<std::size_t>(strip) * sizeof(Scalar));
      if (b.column_step == 1) {
        // Some rows at a time, as they lie in memory: strips are a power of two apart, which caches do not like.
        for (int64_t k = 0; k < terms.count; k += kRun)
          for (int64_t column = 0; column < tile.columns; column += kColumns) {
            for (int64_t i = kRun; i < 2 * kRun; ++i) __builtin_prefetch(from + (k + i) * b.row_step + column);
            widen(from + k * b.row_step + column, b.row_step, std::min(kRun, terms.count - k),
                  std::min(kColumns, tile.columns - column), to + column * terms.count + k * kColumns, kColumns);
          }
      } else {
        for (int64_t column = 0; column < tile.columns; column += kColumns)
          widen_turned(from + column * b.column_step, b.column_step, std::min(kColumns, tile.columns - column),
                       terms.count, to + column * terms.count, kColumns);
      }
    });
  }

  /// The terms of the tile's columns, of codes.
  static Matrix expanded(const Codes& codes, const ProductTile& tile, const Terms& terms, uint16_t* to) {
    if (codes.turned) {
      expand(codes, tile.column, tile.columns, terms.begin, terms.count, to);
      return {to, Dtype::bf16, 1, terms.count, 0};
    }
    expand(codes, terms.begin, terms.count, tile.column, tile.columns, to);
    return {to, Dtype::bf16, tile.columns, 1, 0};
  }

  /// The terms of a block of rows: as they are where they can be multiplied so, else widened.
  static Left left_of(const Product& p, const ProductTile& tile, const Terms& terms, int64_t row, int64_t rows,
                      Scalar* to) {
    const int64_t step = ProductBuffers<Scalar>::left_step(p.k);
    Left left{to, step};
    with_type(p.a.dtype, [&](auto type) {
      using T = decltype(type);
      if (p.patches != nullptr) return pack_patches<T>(p, tile.row + row, rows, terms, to, step);
      const T* const from = static_cast<const T*>(p.a.data) + tile.batch * p.a.batch_step +
                            (tile.row + row) * p.a.row_step + terms.begin * p.a.column_step;
      if constexpr (sizeof(T) == sizeof(Scalar))
        if (p.a.column_step == 1) return void(left = {from, p.a.row_step});
      if (p.a.column_step == 1)
        widen(from, p.a.row_step, rows, terms.count, to, step);
      else
        widen_turned(from, p.a.column_step, terms.count, rows, to, step);
    });
    return left;
  }

  /// The terms of patches, with zeros beyond the picture.
  template <typename T>
  static void pack_patches(const Product& p, int64_t first, int64_t rows, const Terms& terms, Scalar* to,
                           int64_t to_step) {
    const Patches& of = *p.patches;
    for (int64_t row = first; row < first + rows; ++row, to += to_step) {
      const int64_t top = row / of.out_width % of.out_height * of.step - of.down;
      const int64_t left = row % of.out_width * of.step - of.across;
      const T* const picture = static_cast<const T*>(p.a.data) + row / of.out_width / of.out_height * of.sample_step;
      for (int64_t k = 0; k < terms.count;) {
        const int64_t pixel = (terms.begin + k) / of.channels, channel = (terms.begin + k) % of.channels;
        const int64_t count = std::min(of.channels - channel, terms.count - k);
        const int64_t y = top + pixel / of.kernel_width, x = left + pixel % of.kernel_width;
        if (y >= 0 && y < of.height && x >= 0 && x < of.width)
          widen(picture + y * of.row_step + x * of.channels + channel, 0, 1, count, to + k, 0);
        else
          std::memset(to + k, 0, static_cast<std::size_t>(count) * sizeof(Scalar));
        k += count;
      }
    }
  }
};

}  // namespace
}  // namespace trainer::kernels
