// Rows made into 8-bit numbers: a block a row, which it reads twice, the second time from the caches.
#include <kernels/cuda/device.cuh>
#include <kernels/cuda/launches.hpp>
#include <kernels/cuda/vectors.cuh>

namespace trainer::kernels {
namespace {

constexpr int kPack = 8;

/// The largest over the block of kThreads, in every thread. All threads must call it.
__device__ inline unsigned block_max(unsigned value) {
  __shared__ unsigned parts[kThreads / kWarp];
  for (int step = kWarp / 2; step > 0; step /= 2) value = max(value, __shfl_xor_sync(0xffffffffU, value, step));
  __syncthreads();  // what an earlier call wrote has been read
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = value;
  __syncthreads();
  for (int i = 0; i < kThreads / kWarp; ++i) value = max(value, parts[i]);
  return value;
}

/// use(column, numbers, count) for the columns of this thread: packs, then what is left one by one.
template <bool kPacks, typename From, typename Use>
__device__ inline void for_columns(const From* x, const float* factors, int64_t width, const Use& use) {
  const int64_t packed = kPacks ? width / kPack * kPack : 0;
  if (kPacks)
    for (int64_t i = static_cast<int64_t>(threadIdx.x) * kPack; i < packed; i += kThreads * kPack) {
      const Pack<From, kPack> read = read_pack<From, kPack>(x + i);
      Pack<float, kPack> numbers;
      for (int k = 0; k < kPack; ++k) numbers.at[k] = to_float(read.at[k]);
      if (factors != nullptr) {
        const Pack<float, kPack> by = read_pack<float, kPack>(factors + i);
        for (int k = 0; k < kPack; ++k) numbers.at[k] *= by.at[k];
      }
      use(i, numbers);
    }
  for (int64_t i = packed + threadIdx.x; i < width; i += kThreads)
    use(i, Pack<float, 1>{{to_float(x[i]) * (factors != nullptr ? factors[i] : 1.0F)}});
}

template <bool kPacks, typename From, typename To>
__global__ void quantize(const QuantizeRows a) {
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const From* x = static_cast<const From*>(a.x) + row * a.x_step;
    To* values = static_cast<To*>(a.values) + row * a.width;
    unsigned largest = 0;
    for_columns<kPacks>(x, a.factors, a.width, [&](int64_t, const auto& numbers) {
      for (const float number : numbers.at) largest = max(largest, magnitude(number));
    });
    const float scale = row_scale(float_of(block_max(largest)), largest_of(To{}));
    if (threadIdx.x == 0) a.scale[row] = scale;
    for_columns<kPacks>(x, a.factors, a.width, [&]<int kCount>(int64_t column, const Pack<float, kCount>& numbers) {
      Pack<To, kCount> codes;
      for (int k = 0; k < kCount; ++k) round_to(numbers.at[k] / scale, &codes.at[k]);
      write_pack<To, kCount>(values + column, codes);
    });
  }
}

template <typename From, typename To>
void start(const QuantizeRows& a, Stream stream) {
  const bool packs = takes_packs(a.x, a.rows, a.x_step, sizeof(From), kPack) &&
                     takes_packs(a.values, a.rows, a.width, sizeof(To), kPack) &&
                     takes_packs(a.factors, 1, 0, sizeof(float), kPack);
  const auto kernel = packs ? quantize<true, From, To> : quantize<false, From, To>;
  run(kernel, blocks_for(a.rows), stream, a);
}

}  // namespace

int cuda_quantize_rows(const QuantizeRows* a, Stream stream) {
  if (a->rows <= 0) return 0;
  return error_of_launch(with_floating(a->from,
                                       [&](auto from) {
                                         if (a->to == Number::e4m3) start<decltype(from), E4m3>(*a, stream);
                                         if (a->to == Number::int8) start<decltype(from), int8_t>(*a, stream);
                                       }) &&
                         (a->to == Number::e4m3 || a->to == Number::int8));
}

}  // namespace trainer::kernels
