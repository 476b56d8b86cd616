// silu(gate) up behind other rows: a thread an element. The formulas are those of cpu/swiglu.hpp.
#include <kernels/cuda/device.cuh>
#include <kernels/cuda/launches.hpp>

namespace trainer::kernels {
namespace {

template <typename T>
__global__ void forward(const SwiGlu a, int64_t elements, T* y) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads, width = a.before_width + a.width;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < elements; at += step) {
    const int64_t row = at / width, column = at % width;
    if (column < a.before_width) {
      y[at] = static_cast<const T*>(a.before)[row * a.before_step + column];
      continue;
    }
    const T* gate = static_cast<const T*>(a.x) + row * a.x_step + column - a.before_width;
    const float g = read(gate);
    write(y + at, g / (1.0F + expf(-g)) * read(gate + a.width));
  }
}

template <typename T>
__global__ void gradient(const SwiGlu a, int64_t elements, const T* grad, int64_t grad_step, T* grad_x) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < elements; at += step) {
    const int64_t row = at / a.width, column = at % a.width;
    const T* gate = static_cast<const T*>(a.x) + row * a.x_step + column;
    const float g = read(gate), d = read(grad + row * grad_step + column);
    const float s = 1.0F / (1.0F + expf(-g));
    T* to = grad_x + row * 2 * a.width + column;
    write(to, d * read(gate + a.width) * (s * (1.0F + g * (1.0F - s))));
    write(to + a.width, d * (g * s));
  }
}

}  // namespace

int cuda_swiglu(const SwiGlu* a, void* y, Stream stream) {
  const int64_t elements = a->rows * (a->before_width + a->width);
  return with_type(a->dtype, elements, [&](auto type) {
    using T = decltype(type);
    forward<<<blocks_for((elements + kThreads - 1) / kThreads), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        *a, elements, static_cast<T*>(y));
  });
}

int cuda_swiglu_grad(const SwiGlu* a, const void* grad, int64_t grad_step, void* grad_x, Stream stream) {
  const int64_t elements = a->rows * a->width;
  return with_type(a->dtype, elements, [&](auto type) {
    using T = decltype(type);
    gradient<<<blocks_for((elements + kThreads - 1) / kThreads), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        *a, elements, static_cast<const T*>(grad), grad_step, static_cast<T*>(grad_x));
  });
}

}  // namespace trainer::kernels
