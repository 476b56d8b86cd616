// RMSNorm and rotation of attention heads: a warp a head of a token, a lane every 32nd pair. The formulas are those of
// cpu/norm_rope.hpp.
#include <kernels/cuda/device.cuh>
#include <kernels/cuda/launches.hpp>

namespace trainer::kernels {
namespace {

constexpr int kWarps = kThreads / kWarp;

/// One head of one token.
template <typename T>
struct Head {
  const T* x;
  const float* table;
  int64_t turned;  ///< place among the turned rows
};

template <typename T>
__device__ Head<T> head_of(const NormRope& a, int64_t unit) {
  const int64_t head = unit % a.heads, sample = unit / a.heads / a.tokens, token = unit / a.heads % a.tokens;
  return {static_cast<const T*>(a.x) + sample * a.x_sample + token * a.x_token + head * a.width,
          a.table + sample * a.table_sample + token * a.width,
          sample * a.y_sample + token * a.y_token + head * a.width};
}

template <typename T>
__device__ float inverse_of(const T* x, const NormRope& a, int lane) {
  float squares = 0;
  for (int64_t i = 2 * lane; i < a.width; i += 2 * kWarp) {
    const float first = read(x + i), second = read(x + i + 1);
    squares += first * first + second * second;
  }
  return 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(a.width) + static_cast<float>(a.eps));
}

/// The gradient of the pair at i, turned back.
template <typename T>
__device__ float2 back(const Head<T>& h, const T* grad, int64_t i) {
  const float cosine = h.table[i], sine = h.table[i + 1];
  const float first = read(grad + h.turned + i), second = read(grad + h.turned + i + 1);
  return {first * cosine + second * sine, second * cosine - first * sine};
}

template <typename T>
__global__ void forward(const NormRope a, int64_t units, T* y) {
  const int lane = threadIdx.x % kWarp;
  const T* weight = static_cast<const T*>(a.weight);
  for (int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; unit < units;
       unit += static_cast<int64_t>(gridDim.x) * kWarps) {
    const Head<T> h = head_of<T>(a, unit);
    const float inverse = inverse_of(h.x, a, lane);
    for (int64_t i = 2 * lane; i < a.width; i += 2 * kWarp) {
      const float first = read(h.x + i) * inverse * read(weight + i);
      const float second = read(h.x + i + 1) * inverse * read(weight + i + 1);
      const float cosine = h.table[i], sine = h.table[i + 1];
      write(y + h.turned + i, first * cosine - second * sine);
      write(y + h.turned + i + 1, second * cosine + first * sine);
    }
  }
}

template <typename T>
__global__ void gradient(const NormRope a, int64_t units, const T* grad, T* grad_x) {
  const int lane = threadIdx.x % kWarp;
  const T* weight = static_cast<const T*>(a.weight);
  for (int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; unit < units;
       unit += static_cast<int64_t>(gridDim.x) * kWarps) {
    const Head<T> h = head_of<T>(a, unit);
    const float inverse = inverse_of(h.x, a, lane);
    float products = 0;
    for (int64_t i = 2 * lane; i < a.width; i += 2 * kWarp) {
      const float2 g = back(h, grad, i);
      products += g.x * read(weight + i) * (read(h.x + i) * inverse);
      products += g.y * read(weight + i + 1) * (read(h.x + i + 1) * inverse);
    }
    const float mean = warp_sum(products) / static_cast<float>(a.width);
    for (int64_t i = 2 * lane; i < a.width; i += 2 * kWarp) {
      const float2 g = back(h, grad, i);
      T* to = grad_x + unit * a.width + i;
      write(to, (g.x * read(weight + i) - read(h.x + i) * inverse * mean) * inverse);
      write(to + 1, (g.y * read(weight + i + 1) - read(h.x + i + 1) * inverse * mean) * inverse);
    }
  }
}

/// A warp for kTokens tokens, one head after the other; each lane adds to columns that are its own.
template <typename T>
__global__ void sums(const NormRope a, int64_t parts, const T* grad, float* partial) {
  const int lane = threadIdx.x % kWarp;
  const int64_t heads = a.samples * a.tokens * a.heads, heads_each = kSumTokens * a.heads;
  for (int64_t part = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; part < parts;
       part += static_cast<int64_t>(gridDim.x) * kWarps) {
    float* total = partial + part * a.width;
    for (int64_t i = 2 * lane; i < a.width; i += 2 * kWarp) total[i] = total[i + 1] = 0;
    for (int64_t unit = part * heads_each; unit < heads && unit < (part + 1) * heads_each; ++unit) {
      const Head<T> h = head_of<T>(a, unit);
      const float inverse = inverse_of(h.x, a, lane);
      for (int64_t i = 2 * lane; i < a.width; i += 2 * kWarp) {
        const float2 g = back(h, grad, i);
        total[i] += g.x * (read(h.x + i) * inverse);
        total[i + 1] += g.y * (read(h.x + i + 1) * inverse);
      }
    }
  }
}

unsigned blocks_of_warps(int64_t units) { return blocks_for((units + kWarps - 1) / kWarps); }
int64_t units_of(const NormRope& a) { return a.samples * a.tokens * a.heads; }

}  // namespace

int cuda_norm_rope(const NormRope* a, void* y, Stream stream) {
  const int64_t units = units_of(*a);
  return with_type(a->dtype, units, [&](auto type) {
    using T = decltype(type);
    forward<<<blocks_of_warps(units), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(*a, units, static_cast<T*>(y));
  });
}

int cuda_norm_rope_grad(const NormRope* a, const void* grad, void* grad_x, Stream stream) {
  const int64_t units = units_of(*a);
  return with_type(a->dtype, units, [&](auto type) {
    using T = decltype(type);
    gradient<<<blocks_of_warps(units), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        *a, units, static_cast<const T*>(grad), static_cast<T*>(grad_x));
  });
}

int cuda_norm_rope_sums(const NormRope* a, const void* grad, void* partial, Stream stream) {
  const int64_t parts = (a->samples * a->tokens + kSumTokens - 1) / kSumTokens;
  return with_type(a->dtype, parts, [&](auto type) {
    using T = decltype(type);
    sums<<<blocks_of_warps(parts), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        *a, parts, static_cast<const T*>(grad), static_cast<float*>(partial));
  });
}

}  // namespace trainer::kernels
