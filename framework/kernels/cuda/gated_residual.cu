// x + gate y, gate one row a sample, in packs where memory allows it. The formulas are those of cpu/gated_residual.hpp.
#include <kernels/cuda/device.cuh>
#include <kernels/cuda/launches.hpp>
#include <kernels/cuda/vectors.cuh>

namespace trainer::kernels {
namespace {

/// use(at, gate, constant) for the elements of this thread: from `at` on, with the gate's numbers for them.
template <int kEach, typename T, typename Use>
__device__ void for_gated(const GatedResidual& a, int64_t samples, const Use& use) {
  for (int64_t sample = blockIdx.z; sample < samples; sample += gridDim.z) {
    const T* gate = static_cast<const T*>(a.gate) + sample * a.gate_step;
    const int64_t first = sample * a.rows_per_sample;
    for_elements<kEach>(a.rows_per_sample, a.width, [&](int64_t row, int64_t column, auto count) {
      use((first + row) * a.width + column, gate + column, count);
    });
  }
}

template <int kEach, typename T>
__global__ void gated_forward(const GatedResidual a, int64_t samples, T* to) {
  for_gated<kEach, T>(a, samples, [&](int64_t at, const T* gate, auto count) {
    constexpr int kCount = decltype(count)::value;
    const auto x = read_pack<T, kCount>(static_cast<const T*>(a.x) + at),
               y = read_pack<T, kCount>(static_cast<const T*>(a.y) + at), g = read_pack<T, kCount>(gate);
    Pack<T, kCount> sum;
    for (int k = 0; k < kCount; ++k) write(sum.at + k, read(x.at + k) + read(g.at + k) * read(y.at + k));
    write_pack<T, kCount>(to + at, sum);
  });
}

template <int kEach, typename T>
__global__ void gated_gradient(const GatedResidual a, int64_t samples, const T* grad, T* grad_y) {
  for_gated<kEach, T>(a, samples, [&](int64_t at, const T* gate, auto count) {
    constexpr int kCount = decltype(count)::value;
    const auto d = read_pack<T, kCount>(grad + at), g = read_pack<T, kCount>(gate);
    Pack<T, kCount> product;
    for (int k = 0; k < kCount; ++k) write(product.at + k, read(d.at + k) * read(g.at + k));
    write_pack<T, kCount>(grad_y + at, product);
  });
}

/// Rows in runs.
template <typename T>
__global__ void sums(const GatedResidual a, int64_t samples, const T* grad, T* grad_gate) {
  for_columns(samples, a.rows_per_sample, a.width, [&](int64_t sample, int64_t column, int64_t begin, int64_t end) {
    constexpr int64_t kRun = 64;
    const int64_t first = sample * a.rows_per_sample;
    float total = 0;
    for (int64_t run = first + begin; run < first + end; run += kRun) {
      float part = 0;
      for (int64_t row = run; row < first + end && row < run + kRun; ++row) {
        const int64_t at = row * a.width + column;
        part += read(grad + at) * read(static_cast<const T*>(a.y) + at);
      }
      total += part;
    }
    total = lane_sum(total);
    if (threadIdx.x < kWarp && column < a.width) write(grad_gate + sample * a.width + column, total);
  });
}

/// The kernel for packs where all of these rows and the gate can be taken in them, otherwise the one for each element.
template <int kPack, typename T, typename... Arguments>
void start_gated(const GatedResidual& a, Stream stream, void (*packed)(GatedResidual, int64_t, Arguments...),
                 void (*single)(GatedResidual, int64_t, Arguments...), std::initializer_list<const void*> rows,
                 Arguments... arguments) {
  const int64_t samples = samples_of(a);
  bool packs = takes_packs(a.gate, samples, a.gate_step, sizeof(T), kPack);
  for (const void* data : rows) packs = packs && takes_packs(data, a.rows, a.width, sizeof(T), kPack);
  const auto kernel = packs ? packed : single;
  const dim3 grid =
      packs ? grid_for<kPack>(a.rows_per_sample, a.width, samples) : grid_for<1>(a.rows_per_sample, a.width, samples);
  run(kernel, grid, stream, a, samples, arguments...);
}

}  // namespace

int cuda_gated_residual(const GatedResidual* a, void* to, Stream stream) {
  return with_type(a->dtype, samples_of(*a) * a->width, [&](auto type) {
    using T = decltype(type);
    constexpr int kPack = 16 / sizeof(T);
    start_gated<kPack, T>(*a, stream, gated_forward<kPack, T>, gated_forward<1, T>, {a->x, a->y, to},
                          static_cast<T*>(to));
  });
}

int cuda_gated_residual_grad(const GatedResidual* a, const void* grad, void* grad_y, Stream stream) {
  return with_type(a->dtype, samples_of(*a) * a->width, [&](auto type) {
    using T = decltype(type);
    constexpr int kPack = 16 / sizeof(T);
    start_gated<kPack, T>(*a, stream, gated_gradient<kPack, T>, gated_gradient<1, T>, {grad, grad_y},
                          static_cast<const T*>(grad), static_cast<T*>(grad_y));
  });
}

int cuda_gated_residual_sums(const GatedResidual* a, const void* grad, void* grad_gate, Stream stream) {
  const int64_t samples = samples_of(*a);
  return with_type(a->dtype, samples * a->width, [&](auto type) {
    using T = decltype(type);
    run(sums<T>, grid_of_columns(samples, a->width), stream, *a, samples, static_cast<const T*>(grad),
        static_cast<T*>(grad_gate));
  });
}

}  // namespace trainer::kernels
