// silu(gate) up behind other rows, in packs where memory allows it. The formulas are those of cpu/swiglu.hpp.
#include <kernels/cuda/device.cuh>
#include <kernels/cuda/launches.hpp>
#include <kernels/cuda/vectors.cuh>

namespace trainer::kernels {
namespace {

template <int kEach, typename T>
__global__ void swiglu_forward(const SwiGlu a, T* y) {
  const int64_t width = a.before_width + a.width;
  for_elements<kEach>(a.rows, width, [&](int64_t row, int64_t column, auto count) {
    constexpr int kCount = decltype(count)::value;
    T* to = y + row * width + column;
    if (column < a.before_width) {
      write_pack<T, kCount>(to, read_pack<T, kCount>(static_cast<const T*>(a.before) + row * a.before_step + column));
      return;
    }
    const T* from = static_cast<const T*>(a.x) + row * a.x_step + column - a.before_width;
    const auto gate = read_pack<T, kCount>(from), up = read_pack<T, kCount>(from + a.width);
    Pack<T, kCount> product;
    for (int k = 0; k < kCount; ++k) {
      const float g = read(gate.at + k);
      write(product.at + k, g / (1.0F + expf(-g)) * read(up.at + k));
    }
    write_pack<T, kCount>(to, product);
  });
}

template <int kEach, typename T>
__global__ void swiglu_gradient(const SwiGlu a, const T* grad, int64_t grad_step, T* grad_x) {
  for_elements<kEach>(a.rows, a.width, [&](int64_t row, int64_t column, auto count) {
    constexpr int kCount = decltype(count)::value;
    const T* from = static_cast<const T*>(a.x) + row * a.x_step + column;
    const auto gate = read_pack<T, kCount>(from), up = read_pack<T, kCount>(from + a.width),
               grads = read_pack<T, kCount>(grad + row * grad_step + column);
    Pack<T, kCount> of_gate, of_up;
    for (int k = 0; k < kCount; ++k) {
      const float g = read(gate.at + k), d = read(grads.at + k), s = 1.0F / (1.0F + expf(-g));
      write(of_gate.at + k, d * read(up.at + k) * (s * (1.0F + g * (1.0F - s))));
      write(of_up.at + k, d * (g * s));
    }
    T* to = grad_x + row * 2 * a.width + column;
    write_pack<T, kCount>(to, of_gate);
    write_pack<T, kCount>(to + a.width, of_up);
  });
}

/// Whether gate and up can be taken in packs of `count`, and rows of `data`, `step` apart.
bool halves_take_packs(const SwiGlu& a, const void* data, int64_t step, int64_t size, int64_t count) {
  return a.width % count == 0 && takes_packs(a.x, a.rows, a.x_step, size, count) &&
         takes_packs(data, a.rows, step, size, count);
}

}  // namespace

int cuda_swiglu(const SwiGlu* a, void* y, Stream stream) {
  const int64_t width = a->before_width + a->width;
  return with_type(a->dtype, a->rows * width, [&](auto type) {
    using T = decltype(type);
    constexpr int kPack = 16 / sizeof(T);
    const bool packs = halves_take_packs(*a, y, width, sizeof(T), kPack) && a->before_width % kPack == 0 &&
                       takes_packs(a->before, a->rows, a->before_step, sizeof(T), kPack);
    const auto kernel = packs ? swiglu_forward<kPack, T> : swiglu_forward<1, T>;
    const dim3 grid = packs ? grid_for<kPack>(a->rows, width) : grid_for<1>(a->rows, width);
    run(kernel, grid, stream, *a, static_cast<T*>(y));
  });
}

int cuda_swiglu_grad(const SwiGlu* a, const void* grad, int64_t grad_step, void* grad_x, Stream stream) {
  return with_type(a->dtype, a->rows * a->width, [&](auto type) {
    using T = decltype(type);
    constexpr int kPack = 16 / sizeof(T);
    const bool packs =
        halves_take_packs(*a, grad, grad_step, sizeof(T), kPack) && takes_packs(grad_x, 1, 0, sizeof(T), kPack);
    const auto kernel = packs ? swiglu_gradient<kPack, T> : swiglu_gradient<1, T>;
    const dim3 grid = packs ? grid_for<kPack>(a->rows, a->width) : grid_for<1>(a->rows, a->width);
    run(kernel, grid, stream, *a, static_cast<const T*>(grad), grad_step, static_cast<T*>(grad_x));
  });
}

}  // namespace trainer::kernels
