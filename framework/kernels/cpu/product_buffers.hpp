/// @file How a product on the CPU is cut into units, and what a thread needs of memory for one: the same at every
/// level. Included by product.hpp and choose.cpp alone.
#pragma once

#include <kernels/fused.h>
#include <kernels/cpu/carve.hpp>

#include <algorithm>

namespace trainer::kernels {
namespace {

/// Terms that are summed in registers; sums of such runs are added up in their order.
constexpr int64_t kTerms = 256;
constexpr int64_t kFewTerms = 64;
/// Rows of `a` that are widened at a time, and columns of `b` side by side, at most; a strip of columns is a multiple
/// of what every level takes.
constexpr int64_t kBlockRows = 84, kStrip = 32;

constexpr int64_t parts_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

/// Which part of the result a unit is.
struct ProductTile {
  int64_t batch, row, rows, column, columns;
};

inline ProductTile tile_of(const Product& p, int64_t unit) {
  const int64_t across = parts_of(p.n, p.tile_columns), down = parts_of(p.m, p.tile_rows);
  const int64_t row = unit / across % down * p.tile_rows, column = unit % across * p.tile_columns;
  return {unit / across / down, row, std::min(p.tile_rows, p.m - row), column, std::min(p.tile_columns, p.n - column)};
}

template <typename Scalar>
struct ProductBuffers {
  ProductBuffers(const Product& p, Carve carve)
      : left(carve.take<Scalar>(std::min(kBlockRows, p.m) * left_step(p.k))),
        right(carve.take<Scalar>(padded(std::min(p.tile_columns, p.n)) * std::min(kTerms, p.k))),
        sums(p.k > kTerms ? carve.take<Scalar>(padded(std::min(p.tile_columns, p.n)) * std::min(p.tile_rows, p.m))
                          : nullptr),
        expanded(p.codes != nullptr ? carve.take<uint16_t>(std::min(p.tile_columns, p.n) * std::min(kTerms, p.k))
                                    : nullptr),
        bytes(carve.used()) {}
  static int64_t padded(int64_t columns) { return parts_of(columns, kStrip) * kStrip; }
  /// Not a power of two: rows that share a set of the cache would push each other out.
  static int64_t left_step(int64_t k) { return std::min(kTerms, k) + 16; }
  Scalar* left;   ///< [kBlockRows, terms]
  Scalar* right;  ///< strips of columns: [strips, terms, columns of a strip]
  Scalar* sums;   ///< of the runs so far: [strips, rows, columns of a strip]
  uint16_t* expanded;  ///< bf16 numbers of codes, as they lie: the terms of a tile's columns
  int64_t bytes;
};

}  // namespace
}  // namespace trainer::kernels
