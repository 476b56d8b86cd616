// The products of a low-rank adapter: fp32 sums over data that may be bf16, without copies of it. What they compute is
// that of cpu/low_rank.hpp. Each result is one thread's or one warp's, in one order.
#include <kernels/cuda/device.cuh>
#include <kernels/cuda/launches.hpp>

namespace trainer::kernels {
namespace {

constexpr int kWarps = kThreads / kWarp;
constexpr int kRanks = 16;  ///< of a thread's sums
constexpr int kDownRows = 4, kUpRows = 8, kOuterThreads = 64;

/// low = factor x weight^T: a warp a few rows, a lane every 32nd column.
template <typename T>
__global__ void down(const LowRank a, float* low) {
  const int lane = threadIdx.x % kWarp;
  const float* weight = static_cast<const float*>(a.weight);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps * kDownRows;
  for (int64_t row = (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp) * kDownRows; row < a.rows;
       row += step) {
    for (int64_t first = 0; first < a.rank; first += kRanks) {
      float sums[kDownRows][kRanks] = {};
      for (int64_t i = lane; i < a.width; i += kWarp) {
        float data[kDownRows];
        for (int m = 0; m < kDownRows; ++m)
          data[m] = row + m < a.rows ? read(static_cast<const T*>(a.x) + (row + m) * a.x_step + i) : 0.0F;
#pragma unroll
        for (int r = 0; r < kRanks; ++r) {
          const float w = first + r < a.rank ? weight[(first + r) * a.width + i] : 0.0F;
          for (int m = 0; m < kDownRows; ++m) sums[m][r] += data[m] * w;
        }
      }
#pragma unroll
      for (int r = 0; r < kRanks; ++r)
        for (int m = 0; m < kDownRows; ++m) {
          const float total = warp_sum(sums[m][r]);
          if (lane == 0 && first + r < a.rank && row + m < a.rows)
            low[(row + m) * a.rank + first + r] = static_cast<float>(a.factor) * total;
        }
    }
  }
}

/// y = x + factor low weight: a thread a column of a few rows.
template <typename T>
__global__ void up(const LowRank a, const float* low, T* y) {
  const float* weight = static_cast<const float*>(a.weight);
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= a.width) return;
  for (int64_t row = static_cast<int64_t>(blockIdx.y) * kUpRows; row < a.rows;
       row += static_cast<int64_t>(gridDim.y) * kUpRows) {
    float sums[kUpRows] = {};
    for (int64_t r = 0; r < a.rank; ++r) {
      const float w = weight[r * a.width + column];
#pragma unroll
      for (int m = 0; m < kUpRows; ++m)
        if (row + m < a.rows) sums[m] += low[(row + m) * a.rank + r] * w;
    }
#pragma unroll
    for (int m = 0; m < kUpRows; ++m) {
      if (row + m >= a.rows) continue;
      float value = static_cast<float>(a.factor) * sums[m];
      if (a.x != nullptr) value += read(static_cast<const T*>(a.x) + (row + m) * a.x_step + column);
      write(y + (row + m) * a.width + column, value);
    }
  }
}

/// grad_weight = factor low^T x: a thread a column, for a few ranks, over all rows in runs.
template <typename T>
__global__ void outer(const LowRank a, const float* low, float* grad_weight) {
  constexpr int64_t kRun = 64;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kOuterThreads + threadIdx.x;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kRanks;
  if (column >= a.width) return;
  float totals[kRanks] = {};
  for (int64_t run = 0; run < a.rows; run += kRun) {
    float sums[kRanks] = {};
    for (int64_t row = run; row < a.rows && row < run + kRun; ++row) {
      const float data = read(static_cast<const T*>(a.x) + row * a.x_step + column);
#pragma unroll
      for (int r = 0; r < kRanks; ++r)
        if (first + r < a.rank) sums[r] += low[row * a.rank + first + r] * data;
    }
#pragma unroll
    for (int r = 0; r < kRanks; ++r) totals[r] += sums[r];
  }
#pragma unroll
  for (int r = 0; r < kRanks; ++r)
    if (first + r < a.rank) grad_weight[(first + r) * a.width + column] = static_cast<float>(a.factor) * totals[r];
}

unsigned ceiling(int64_t units, int64_t each) { return static_cast<unsigned>((units + each - 1) / each); }

}  // namespace

int cuda_low_rank_down(const LowRank* a, void* low, Stream stream) {
  return with_type(a->dtype, a->rows * a->rank, [&](auto type) {
    using T = decltype(type);
    down<T><<<blocks_for(ceiling(a->rows, kWarps * kDownRows)), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        *a, static_cast<float*>(low));
  });
}

int cuda_low_rank_up(const LowRank* a, const void* low, void* y, Stream stream) {
  constexpr unsigned kMostBlocks = 65535;  // of a grid's second dimension
  return with_type(a->dtype, a->rows * a->width, [&](auto type) {
    using T = decltype(type);
    const unsigned rows = ceiling(a->rows, kUpRows);
    const dim3 grid(ceiling(a->width, kThreads), rows < kMostBlocks ? rows : kMostBlocks);
    up<T><<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*a, static_cast<const float*>(low),
                                                                    static_cast<T*>(y));
  });
}

int cuda_low_rank_outer(const LowRank* a, const void* low, void* grad_weight, Stream stream) {
  return with_type(a->dtype, a->rank * a->width, [&](auto type) {
    using T = decltype(type);
    const dim3 grid(ceiling(a->width, kOuterThreads), ceiling(a->rank, kRanks));
    outer<T><<<grid, kOuterThreads, 0, static_cast<cudaStream_t>(stream)>>>(*a, static_cast<const float*>(low),
                                                                           static_cast<float*>(grad_weight));
  });
}

}  // namespace trainer::kernels
