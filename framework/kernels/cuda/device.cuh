/// @file What the CUDA kernels share: elements, reductions in a fixed order, launches. No header but the compiler's
/// own.
#pragma once

#include <kernels/cuda.hpp>

namespace trainer::kernels {

/// Rounded to the nearest, ties to even.
struct Bf16 {
  unsigned short bits;
};

__device__ inline float read(const float* from) { return *from; }
__device__ inline float read(const Bf16* from) { return __uint_as_float(static_cast<unsigned>(from->bits) << 16); }
__device__ inline void write(float* to, float value) { *to = value; }
__device__ inline void write(Bf16* to, float value) {
  const unsigned bits = __float_as_uint(value);
  const unsigned rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  to->bits = static_cast<unsigned short>(value == value ? rounded : 0x7fc0);
}

constexpr int kWarp = 32;
constexpr int kThreads = 256;

/// The sum over the warp, in every lane.
__device__ inline float warp_sum(float value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffU, value, step);
  return value;
}

/// The sum over the block of kThreads, in every thread. All threads must call it.
__device__ inline float block_sum(float value) {
  __shared__ float parts[kThreads / kWarp];
  value = warp_sum(value);
  __syncthreads();  // what an earlier call wrote has been read
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = value;
  __syncthreads();
  float total = 0;
  for (int i = 0; i < kThreads / kWarp; ++i) total += parts[i];
  return total;
}

/// The sum over the threads of the block that have this one's lane, in every thread. All threads must call it.
__device__ inline float lane_sum(float value) {
  __shared__ float parts[kThreads / kWarp][kWarp];
  __syncthreads();  // what an earlier call wrote has been read
  parts[threadIdx.x / kWarp][threadIdx.x % kWarp] = value;
  __syncthreads();
  float total = 0;
  for (int i = 0; i < kThreads / kWarp; ++i) total += parts[i][threadIdx.x % kWarp];
  return total;
}

/// A block for a warp's width of columns of a sample; its warps share the rows. Kernels loop over what is more.
inline dim3 grid_of_columns(int64_t samples, int64_t width) {
  constexpr int64_t kMost = 65535, kChunks = 1 << 20;
  const int64_t chunks = (width + kWarp - 1) / kWarp;
  return {static_cast<unsigned>(chunks < kChunks ? chunks : kChunks),
          static_cast<unsigned>(samples < kMost ? samples : kMost), 1};
}

/// use(sample, column, begin, end) for this thread's share of a column's `rows`. All threads of the block make the same
/// calls; beyond the width the share is empty.
template <typename Use>
__device__ inline void for_columns(int64_t samples, int64_t rows, int64_t width, const Use& use) {
  constexpr int64_t kShares = kThreads / kWarp;
  const int64_t each = (rows + kShares - 1) / kShares, from = threadIdx.x / kWarp * each;
  const int64_t begin = from < rows ? from : rows, end = begin + each < rows ? begin + each : rows;
  for (int64_t sample = blockIdx.y; sample < samples; sample += gridDim.y)
    for (int64_t left = static_cast<int64_t>(blockIdx.x) * kWarp; left < width;
         left += static_cast<int64_t>(gridDim.x) * kWarp) {
      const int64_t column = left + threadIdx.x % kWarp;
      use(sample, column, begin, column < width ? end : begin);
    }
}

/// Blocks for `units`; kernels loop over what is more.
inline unsigned blocks_for(int64_t units) {
  constexpr int64_t kMost = 1 << 20;
  return static_cast<unsigned>(units < kMost ? units : kMost);
}

/// kernel(arguments...) by a grid of blocks of kThreads; the error of the launch is CUDA's last one.
template <typename... Parameters, typename... Arguments>
void run(void (*kernel)(Parameters...), dim3 grid, Stream stream, Arguments... arguments) {
  cudaLaunchConfig_t launch{};
  launch.gridDim = grid;
  launch.blockDim = dim3(kThreads);
  launch.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchKernelEx(&launch, kernel, arguments...);
}

/// How many samples the rows are; -1 where they are not whole samples, which no kernel takes.
template <typename Arguments>
int64_t samples_of(const Arguments& a) {
  if (a.rows <= 0) return 0;
  return a.rows_per_sample > 0 && a.rows % a.rows_per_sample == 0 ? a.rows / a.rows_per_sample : -1;
}

/// launch(element) with an element of the type; returns the error of the launch. fp64 is not computed on CUDA.
template <typename Launch>
int with_type(Dtype dtype, int64_t units, const Launch& launch) {
  if (units == 0) return 0;
  if (units < 0) return static_cast<int>(cudaErrorInvalidValue);
  if (dtype == Dtype::f32)
    launch(float{});
  else if (dtype == Dtype::bf16)
    launch(Bf16{});
  else
    return static_cast<int>(cudaErrorInvalidValue);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace trainer::kernels
