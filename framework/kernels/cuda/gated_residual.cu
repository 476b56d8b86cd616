// x + gate y, gate one row a sample: a thread an element. The formulas are those of cpu/gated_residual.hpp.
#include <kernels/cuda/device.cuh>
#include <kernels/cuda/launches.hpp>

namespace trainer::kernels {
namespace {

template <typename T>
__device__ float gate_at(const GatedResidual& a, int64_t at) {
  const int64_t row = at / a.width, column = at % a.width;
  return read(static_cast<const T*>(a.gate) + row / a.rows_per_sample * a.gate_step + column);
}

template <typename T>
__global__ void forward(const GatedResidual a, int64_t elements, T* to) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < elements; at += step)
    write(to + at, read(static_cast<const T*>(a.x) + at) + gate_at<T>(a, at) * read(static_cast<const T*>(a.y) + at));
}

template <typename T>
__global__ void gradient(const GatedResidual a, int64_t elements, const T* grad, T* grad_y) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < elements; at += step)
    write(grad_y + at, read(grad + at) * gate_at<T>(a, at));
}

/// A thread a column of a sample, over its rows in runs.
template <typename T>
__global__ void sums(const GatedResidual a, int64_t columns, const T* grad, T* grad_gate) {
  constexpr int64_t kRun = 64;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; column < columns; column += step) {
    const int64_t begin = column / a.width * a.rows_per_sample, end = begin + a.rows_per_sample;
    float total = 0;
    for (int64_t run = begin; run < end; run += kRun) {
      float part = 0;
      for (int64_t row = run; row < end && row < run + kRun; ++row) {
        const int64_t at = row * a.width + column % a.width;
        part += read(grad + at) * read(static_cast<const T*>(a.y) + at);
      }
      total += part;
    }
    write(grad_gate + column, total);
  }
}

unsigned blocks_of(int64_t elements) { return blocks_for((elements + kThreads - 1) / kThreads); }

}  // namespace

int cuda_gated_residual(const GatedResidual* a, void* to, Stream stream) {
  const int64_t elements = a->rows * a->width;
  return with_type(a->dtype, elements, [&](auto type) {
    using T = decltype(type);
    forward<<<blocks_of(elements), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*a, elements, static_cast<T*>(to));
  });
}

int cuda_gated_residual_grad(const GatedResidual* a, const void* grad, void* grad_y, Stream stream) {
  const int64_t elements = a->rows * a->width;
  return with_type(a->dtype, elements, [&](auto type) {
    using T = decltype(type);
    gradient<<<blocks_of(elements), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        *a, elements, static_cast<const T*>(grad), static_cast<T*>(grad_y));
  });
}

int cuda_gated_residual_sums(const GatedResidual* a, const void* grad, void* grad_gate, Stream stream) {
  const int64_t columns = a->rows_per_sample > 0 ? a->rows / a->rows_per_sample * a->width : 0;
  return with_type(a->dtype, columns, [&](auto type) {
    using T = decltype(type);
    sums<<<blocks_of(columns), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        *a, columns, static_cast<const T*>(grad), static_cast<T*>(grad_gate));
  });
}

}  // namespace trainer::kernels
