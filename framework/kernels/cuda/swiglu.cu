// silu(gate) up behind other rows. The formulas are those of cpu/swiglu.hpp.
#include <kernels/cuda/device.cuh>
#include <kernels/cuda/launches.hpp>

namespace trainer::kernels {
namespace {

/// Columns along x, rows along y: no thread divides to find its place.
dim3 grid_of(int64_t rows, int64_t columns) {
  constexpr int64_t kMost = 65535;  // of a grid along y
  return {blocks_for((columns + kThreads - 1) / kThreads), static_cast<unsigned>(rows < kMost ? rows : kMost)};
}

/// Calls `each(row, column)` for what this thread is to compute.
template <typename Each>
__device__ void for_each_element(int64_t rows, int64_t columns, const Each& each) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y)
    for (int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; column < columns; column += step)
      each(row, column);
}

template <typename T>
__global__ void forward(const SwiGlu a, T* y) {
  const int64_t width = a.before_width + a.width;
  for_each_element(a.rows, width, [&](int64_t row, int64_t column) {
    T* to = y + row * width + column;
    if (column < a.before_width) {
      *to = static_cast<const T*>(a.before)[row * a.before_step + column];
      return;
    }
    const T* gate = static_cast<const T*>(a.x) + row * a.x_step + column - a.before_width;
    const float g = read(gate);
    write(to, g / (1.0F + expf(-g)) * read(gate + a.width));
  });
}

template <typename T>
__global__ void gradient(const SwiGlu a, const T* grad, int64_t grad_step, T* grad_x) {
  for_each_element(a.rows, a.width, [&](int64_t row, int64_t column) {
    const T* gate = static_cast<const T*>(a.x) + row * a.x_step + column;
    const float g = read(gate), d = read(grad + row * grad_step + column);
    const float s = 1.0F / (1.0F + expf(-g));
    T* to = grad_x + row * 2 * a.width + column;
    write(to, d * read(gate + a.width) * (s * (1.0F + g * (1.0F - s))));
    write(to + a.width, d * (g * s));
  });
}

}  // namespace

int cuda_swiglu(const SwiGlu* a, void* y, Stream stream) {
  const int64_t width = a->before_width + a->width;
  return with_type(a->dtype, a->rows * width, [&](auto type) {
    using T = decltype(type);
    forward<<<grid_of(a->rows, width), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*a, static_cast<T*>(y));
  });
}

int cuda_swiglu_grad(const SwiGlu* a, const void* grad, int64_t grad_step, void* grad_x, Stream stream) {
  return with_type(a->dtype, a->rows * a->width, [&](auto type) {
    using T = decltype(type);
    gradient<<<grid_of(a->rows, a->width), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        *a, static_cast<const T*>(grad), grad_step, static_cast<T*>(grad_x));
  });
}

}  // namespace trainer::kernels
