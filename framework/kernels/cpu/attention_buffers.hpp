/// @file What an attention on the CPU needs beside its inputs and results: tiles of scores, and a head's rows packed as
/// its products read them. One layout for those that compute in it and those that only ask for its size. Included by
/// level.cpp and choose.cpp alone.
#pragma once

#include <kernels/fused.h>
#include <kernels/cpu/carve.hpp>

#include <algorithm>
#include <cstddef>

namespace trainer::kernels {
namespace {

/// Rows of queries and keys worked on at a time: even, and a tile of scores stays near its processor.
struct TileSizes {
  int64_t queries, keys;
};
constexpr TileSizes kForwardTile{64, 512}, kBackwardTile{64, 256};

/// Tiles of queries of all heads.
inline int64_t units_of(const Attention& a) {
  return a.samples * a.heads * ((a.queries + kForwardTile.queries - 1) / kForwardTile.queries);
}

/// Products of 2-byte numbers sum over pairs: one more, zero, where the number is odd.
template <typename T>
constexpr int64_t paired(int64_t count) {
  return sizeof(T) == 2 ? count + count % 2 : count;
}

/// T: what is multiplied, fp32 where bf16 is widened for it.
template <typename T>
struct ForwardBuffers {
  ForwardBuffers(const Attention& a, Carve carve)
      : tile{std::min(kForwardTile.queries, a.queries), std::min(kForwardTile.keys, a.keys)},
        columns(paired<T>(tile.keys)),
        k(carve.take<T>(a.keys * a.width)),
        v(carve.take<T>(paired<T>(a.keys) * a.width)),
        scores(carve.take<float>(tile.queries * columns)),
        weights(sizeof(T) == 2 ? carve.take<T>(tile.queries * columns) : reinterpret_cast<T*>(scores)),
        sums(carve.take<float>(tile.queries * a.width)),
        q(a.widened ? carve.take<T>(tile.queries * a.width) : nullptr),
        bytes(carve.used()) {}
  TileSizes tile;
  int64_t columns;  ///< steps from row to row of scores and weights
  T *k, *v;         ///< of the head: tiles of k^T, and v by pairs of rows
  float* scores;
  T* weights;   ///< fp32: the scores' place
  float* sums;  ///< of v, weighted: [queries of the tile, width]
  T* q;         ///< of the tile, widened
  int64_t bytes;
};

/// Scores and weights lie transposed here: rows are keys.
template <typename T>
struct BackwardBuffers {
  BackwardBuffers(const Attention& a, Carve carve)
      : tile{std::min(kBackwardTile.queries, a.queries), std::min(kBackwardTile.keys, a.keys)},
        columns(paired<T>(tile.queries)),
        q_columns(carve.take<T>(a.queries * a.width)),
        grad_columns(carve.take<T>(a.queries * a.width)),
        q_rows(carve.take<T>(paired<T>(a.queries) * a.width)),
        grad_rows(carve.take<T>(paired<T>(a.queries) * a.width)),
        k_columns(carve.take<T>(paired<T>(tile.keys) * a.width)),
        grad_q(carve.take<float>(a.queries * a.width)),
        grad_k(carve.take<float>(tile.keys * a.width)),
        grad_v(carve.take<float>(tile.keys * a.width)),
        log_sums(carve.take<float>(a.queries)),
        dots(carve.take<float>(a.queries)),
        scores(carve.take<float>(tile.keys * columns)),
        grad_weights(carve.take<float>(tile.keys * columns)),
        weights(sizeof(T) == 2 ? carve.take<T>(tile.keys * columns) : reinterpret_cast<T*>(scores)),
        grad_scores(sizeof(T) == 2 ? carve.take<T>(tile.keys * columns) : reinterpret_cast<T*>(grad_weights)),
        paired_grad_scores(sizeof(T) == 2 ? carve.take<T>(paired<T>(tile.keys) * tile.queries) : grad_scores),
        k(a.widened ? carve.take<T>(tile.keys * a.width) : nullptr),
        v(a.widened ? carve.take<T>(tile.keys * a.width) : nullptr),
        bytes(carve.used()) {}
  TileSizes tile;
  int64_t columns;              ///< steps from row to row of the tiles
  T *q_columns, *grad_columns;  ///< of the head: tiles of q^T and of the output gradient's
  T *q_rows, *grad_rows;        ///< the same by pairs of rows
  T* k_columns;                 ///< k^T of a tile of keys, [width, keys]
  float* grad_q;                ///< of the head: tiles of its transpose
  float *grad_k, *grad_v;       ///< of a tile of keys
  float *log_sums, *dots;       ///< of each query
  float *scores, *grad_weights;
  T *weights, *grad_scores, *paired_grad_scores;
  T *k, *v;  ///< of a tile of keys, widened
  int64_t bytes;
};

}  // namespace
}  // namespace trainer::kernels
