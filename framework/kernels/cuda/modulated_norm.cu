// LayerNorm(x) (1 + scale) + shift: a block a row. The formulas are those of cpu/modulated_norm.hpp.
#include <kernels/cuda/device.cuh>
#include <kernels/cuda/launches.hpp>

namespace trainer::kernels {
namespace {

template <typename T>
__device__ float2 moments_of(const T* x, const ModulatedNorm& a) {
  float total = 0, squares = 0;
  for (int64_t i = threadIdx.x; i < a.width; i += kThreads) total += read(x + i);
  const float mean = block_sum(total) / static_cast<float>(a.width);
  for (int64_t i = threadIdx.x; i < a.width; i += kThreads) {
    const float off = read(x + i) - mean;
    squares += off * off;
  }
  const float variance = block_sum(squares) / static_cast<float>(a.width);
  return {mean, 1.0F / sqrtf(variance + static_cast<float>(a.eps))};
}

template <typename T>
__global__ void forward(const ModulatedNorm a, T* y) {
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int64_t sample = row / a.rows_per_sample;
    const T* x = static_cast<const T*>(a.x) + row * a.width;
    const T* shift = static_cast<const T*>(a.shift) + sample * a.shift_step;
    const T* scale = static_cast<const T*>(a.scale) + sample * a.scale_step;
    const float2 m = moments_of(x, a);
    for (int64_t i = threadIdx.x; i < a.width; i += kThreads)
      write(y + row * a.width + i, (read(x + i) - m.x) * m.y * (read(scale + i) + 1.0F) + read(shift + i));
  }
}

template <typename T>
__global__ void gradient(const ModulatedNorm a, const T* grad, T* grad_x, float2* moments) {
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + row * a.width;
    const T* g = grad + row * a.width;
    const T* scale = static_cast<const T*>(a.scale) + row / a.rows_per_sample * a.scale_step;
    const float2 m = moments_of(x, a);
    if (moments != nullptr && threadIdx.x == 0) moments[row] = m;
    float sum_u = 0, sum_un = 0;
    for (int64_t i = threadIdx.x; i < a.width; i += kThreads) {
      const float u = read(g + i) * (read(scale + i) + 1.0F);
      sum_u += u;
      sum_un += u * ((read(x + i) - m.x) * m.y);
    }
    const float mean_u = block_sum(sum_u) / static_cast<float>(a.width);
    const float mean_un = block_sum(sum_un) / static_cast<float>(a.width);
    for (int64_t i = threadIdx.x; i < a.width; i += kThreads) {
      const float normal = (read(x + i) - m.x) * m.y;
      write(grad_x + row * a.width + i, (read(g + i) * (read(scale + i) + 1.0F) - mean_u - normal * mean_un) * m.y);
    }
  }
}

/// Rows in runs.
template <typename T>
__global__ void sums(const ModulatedNorm a, int64_t samples, const T* grad, const float2* moments, T* grad_shift,
                     T* grad_scale) {
  for_columns(samples, a.rows_per_sample, a.width, [&](int64_t sample, int64_t column, int64_t begin, int64_t end) {
    constexpr int64_t kRun = 64;
    const int64_t first = sample * a.rows_per_sample;
    float shift = 0, scale = 0;
    for (int64_t run = first + begin; run < first + end; run += kRun) {
      float part_shift = 0, part_scale = 0;
      for (int64_t row = run; row < first + end && row < run + kRun; ++row) {
        const int64_t at = row * a.width + column;
        const float g = read(grad + at);
        part_shift += g;
        part_scale += g * ((read(static_cast<const T*>(a.x) + at) - moments[row].x) * moments[row].y);
      }
      shift += part_shift;
      scale += part_scale;
    }
    shift = lane_sum(shift);
    scale = lane_sum(scale);
    if (threadIdx.x >= kWarp || column >= a.width) return;
    if (grad_shift != nullptr) write(grad_shift + sample * a.width + column, shift);
    if (grad_scale != nullptr) write(grad_scale + sample * a.width + column, scale);
  });
}

}  // namespace

int cuda_modulated_norm(const ModulatedNorm* a, void* y, Stream stream) {
  return with_type(a->dtype, samples_of(*a) * a->width, [&](auto type) {
    using T = decltype(type);
    run(forward<T>, blocks_for(a->rows), stream, *a, static_cast<T*>(y));
  });
}

int cuda_modulated_norm_grad(const ModulatedNorm* a, const void* grad, void* grad_x, void* moments, Stream stream) {
  return with_type(a->dtype, samples_of(*a) * a->width, [&](auto type) {
    using T = decltype(type);
    run(gradient<T>, blocks_for(a->rows), stream, *a, static_cast<const T*>(grad), static_cast<T*>(grad_x),
        static_cast<float2*>(moments));
  });
}

int cuda_modulated_norm_sums(const ModulatedNorm* a, const void* grad, const void* moments, void* grad_shift,
                             void* grad_scale, Stream stream) {
  const int64_t samples = samples_of(*a);
  return with_type(a->dtype, samples * a->width, [&](auto type) {
    using T = decltype(type);
    run(sums<T>, grid_of_columns(samples, a->width), stream, *a, samples, static_cast<const T*>(grad),
        static_cast<const float2*>(moments), static_cast<T*>(grad_shift), static_cast<T*>(grad_scale));
  });
}

}  // namespace trainer::kernels
