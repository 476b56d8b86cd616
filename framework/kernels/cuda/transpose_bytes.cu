// Bytes transposed: a block a tile, through shared memory, so that both sides are read and written along their rows.
#include <kernels/cuda/device.cuh>
#include <kernels/cuda/launches.hpp>
#include <kernels/cuda/vectors.cuh>

namespace trainer::kernels {
namespace {

constexpr int kTile = 64, kWord = 4, kWords = kTile / kWord;

/// kWhole: every row of both matrices begins at a word, and every tile is whole.
template <bool kWhole>
__global__ void transpose(const TransposeBytes a, int64_t tiles, int64_t tiles_across) {
  using Bytes = Pack<uint8_t, kWord>;
  __shared__ Bytes tile[kTile][kWords + 1];  // one more: columns of the tile lie in different banks
  const auto* x = static_cast<const uint8_t*>(a.x);
  auto* y = static_cast<uint8_t*>(a.y);
  const int word = static_cast<int>(threadIdx.x) % kWords, line = static_cast<int>(threadIdx.x) / kWords;
  for (int64_t at = blockIdx.x; at < tiles; at += gridDim.x) {
    const int64_t top = at / tiles_across * kTile, left = at % tiles_across * kTile;
    for (int i = line; i < kTile; i += kThreads / kWords) {
      const int64_t row = top + i, column = left + word * kWord;
      Bytes bytes{};
      if (kWhole)
        bytes = read_pack<uint8_t, kWord>(x + row * a.width + column);
      else
        for (int k = 0; k < kWord; ++k)
          if (row < a.rows && column + k < a.width) bytes.at[k] = x[row * a.width + column + k];
      tile[i][word] = bytes;
    }
    __syncthreads();
    for (int i = line; i < kTile; i += kThreads / kWords) {
      const int64_t row = left + i, column = top + word * kWord;  // of y
      Bytes bytes;
      for (int k = 0; k < kWord; ++k) bytes.at[k] = tile[word * kWord + k][i / kWord].at[i % kWord];
      if (kWhole)
        write_pack<uint8_t, kWord>(y + row * a.rows + column, bytes);
      else
        for (int k = 0; k < kWord; ++k)
          if (row < a.width && column + k < a.rows) y[row * a.rows + column + k] = bytes.at[k];
    }
    __syncthreads();  // the next tile comes into the same place
  }
}

}  // namespace

int cuda_transpose_bytes(const TransposeBytes* a, Stream stream) {
  if (a->rows <= 0 || a->width <= 0) return 0;
  const int64_t across = (a->width + kTile - 1) / kTile, tiles = (a->rows + kTile - 1) / kTile * across;
  const bool whole = a->rows % kTile == 0 && a->width % kTile == 0 && takes_packs(a->x, 1, 0, 1, kWord) &&
                     takes_packs(a->y, 1, 0, 1, kWord);
  const auto kernel = whole ? transpose<true> : transpose<false>;
  run(kernel, blocks_for(tiles), stream, *a, tiles, across);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace trainer::kernels
