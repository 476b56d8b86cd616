// RMSNorm and rotation of attention heads: a warp a head of a token, a lane every 32nd pair; heads along x, tokens
// along y, samples along z, so that no thread divides to find its place. The formulas are those of cpu/norm_rope.hpp.
#include <kernels/cuda/device.cuh>
#include <kernels/cuda/launches.hpp>
#include <kernels/cuda/vectors.cuh>

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
__device__ Head<T> head_of(const NormRope& a, int64_t sample, int64_t token, int64_t head) {
  return {static_cast<const T*>(a.x) + sample * a.x_sample + token * a.x_token + head * a.width,
          a.table + sample * a.table_sample + token * a.width,
          sample * a.y_sample + token * a.y_token + head * a.width};
}

dim3 grid_of_heads(const NormRope& a) {
  constexpr int64_t kMost = 65535;  // of a grid along y and z
  return {blocks_for((a.heads + kWarps - 1) / kWarps), static_cast<unsigned>(a.tokens < kMost ? a.tokens : kMost),
          static_cast<unsigned>(a.samples < kMost ? a.samples : kMost)};
}

/// use(sample, token, head) for what this thread's warp is to compute.
template <typename Use>
__device__ void for_heads(const NormRope& a, const Use& use) {
  for (int64_t sample = blockIdx.z; sample < a.samples; sample += gridDim.z)
    for (int64_t token = blockIdx.y; token < a.tokens; token += gridDim.y)
      for (int64_t head = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; head < a.heads;
           head += static_cast<int64_t>(gridDim.x) * kWarps)
        use(sample, token, head);
}

/// Two neighbours, in one access of memory where kPairs.
template <bool kPairs, typename T>
__device__ float2 pair_at(const T* from) {
  if constexpr (kPairs) {
    const Pack<T, 2> pair = read_pack<T, 2>(from);
    return {read(pair.at), read(pair.at + 1)};
  } else {
    return {read(from), read(from + 1)};
  }
}
template <bool kPairs, typename T>
__device__ void write_pair(T* to, float first, float second) {
  Pack<T, 2> pair;
  write(pair.at, first);
  write(pair.at + 1, second);
  if constexpr (kPairs) {
    write_pack<T, 2>(to, pair);
  } else {
    to[0] = pair.at[0];
    to[1] = pair.at[1];
  }
}

template <bool kPairs, typename T>
__device__ float inverse_of(const T* x, const NormRope& a, int lane) {
  float squares = 0;
  for (int64_t i = 2 * lane; i < a.width; i += 2 * kWarp) {
    const float2 pair = pair_at<kPairs>(x + i);
    squares += pair.x * pair.x + pair.y * pair.y;
  }
  return 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(a.width) + static_cast<float>(a.eps));
}

/// The gradient of the pair at i, turned back.
template <bool kPairs, typename T>
__device__ float2 back(const Head<T>& h, const T* grad, int64_t i) {
  const float2 turn = pair_at<kPairs>(h.table + i), g = pair_at<kPairs>(grad + h.turned + i);
  return {g.x * turn.x + g.y * turn.y, g.y * turn.x - g.x * turn.y};
}

template <bool kPairs, typename T>
__global__ void norm_rope_forward(const NormRope a, T* y) {
  const int lane = threadIdx.x % kWarp;
  const T* weight = static_cast<const T*>(a.weight);
  for_heads(a, [&](int64_t sample, int64_t token, int64_t head) {
    const Head<T> h = head_of<T>(a, sample, token, head);
    const float inverse = inverse_of<kPairs>(h.x, a, lane);
    for (int64_t i = 2 * lane; i < a.width; i += 2 * kWarp) {
      const float2 x = pair_at<kPairs>(h.x + i), w = pair_at<kPairs>(weight + i), turn = pair_at<kPairs>(h.table + i);
      const float first = x.x * inverse * w.x, second = x.y * inverse * w.y;
      write_pair<kPairs>(y + h.turned + i, first * turn.x - second * turn.y, second * turn.x + first * turn.y);
    }
  });
}

template <bool kPairs, typename T>
__global__ void norm_rope_gradient(const NormRope a, const T* grad, T* grad_x) {
  const int lane = threadIdx.x % kWarp;
  const T* weight = static_cast<const T*>(a.weight);
  for_heads(a, [&](int64_t sample, int64_t token, int64_t head) {
    const Head<T> h = head_of<T>(a, sample, token, head);
    const float inverse = inverse_of<kPairs>(h.x, a, lane);
    float products = 0;
    for (int64_t i = 2 * lane; i < a.width; i += 2 * kWarp) {
      const float2 g = back<kPairs>(h, grad, i), x = pair_at<kPairs>(h.x + i), w = pair_at<kPairs>(weight + i);
      products += g.x * w.x * (x.x * inverse);
      products += g.y * w.y * (x.y * inverse);
    }
    const float mean = warp_sum(products) / static_cast<float>(a.width);
    for (int64_t i = 2 * lane; i < a.width; i += 2 * kWarp) {
      const float2 g = back<kPairs>(h, grad, i), x = pair_at<kPairs>(h.x + i), w = pair_at<kPairs>(weight + i);
      write_pair<kPairs>(grad_x + ((sample * a.tokens + token) * a.heads + head) * a.width + i,
                         (g.x * w.x - x.x * inverse * mean) * inverse, (g.y * w.y - x.y * inverse * mean) * inverse);
    }
  });
}

/// A block for kSumTokens tokens, whose heads its warps share; each lane sums a pair of columns at a time.
template <typename T>
__global__ void sums(const NormRope a, int64_t parts, const T* grad, float* partial) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t tokens = a.samples * a.tokens;
  for (int64_t part = blockIdx.x; part < parts; part += gridDim.x)
    for (int64_t left = 0; left < a.width; left += 2 * kWarp) {
      const int64_t i = left + 2 * lane;
      float2 total{0, 0};
      for (int64_t at = part * kSumTokens; at < tokens && at < (part + 1) * kSumTokens; ++at)
        for (int64_t head = warp; head < a.heads; head += kWarps) {
          const Head<T> h = head_of<T>(a, at / a.tokens, at % a.tokens, head);
          const float inverse = inverse_of<false>(h.x, a, lane);
          if (i >= a.width) continue;
          const float2 g = back<false>(h, grad, i);
          total.x += g.x * (read(h.x + i) * inverse);
          total.y += g.y * (read(h.x + i + 1) * inverse);
        }
      total.x = lane_sum(total.x);
      total.y = lane_sum(total.y);
      if (warp > 0 || i >= a.width) continue;
      partial[part * a.width + i] = total.x;
      partial[part * a.width + i + 1] = total.y;
    }
}

int64_t units_of(const NormRope& a) { return a.samples * a.tokens * a.heads; }

/// Whether neighbours can be taken two at a time: `turned` has the steps of y, `dense` none.
template <typename T>
bool takes_pairs(const NormRope& a, const void* turned, const void* dense) {
  const auto takes = [](const void* data, int64_t sample, int64_t token) {
    return takes_packs(data, 2, sample, sizeof(T), 2) && takes_packs(data, 2, token, sizeof(T), 2);
  };
  return takes(a.x, a.x_sample, a.x_token) && takes(turned, a.y_sample, a.y_token) && takes(a.weight, 0, 0) &&
         takes(dense, 0, 0) && takes_packs(a.table, 2, a.table_sample, sizeof(float), 2);
}

}  // namespace

int cuda_norm_rope(const NormRope* a, void* y, Stream stream) {
  return with_type(a->dtype, units_of(*a), [&](auto type) {
    using T = decltype(type);
    const auto kernel = takes_pairs<T>(*a, y, nullptr) ? norm_rope_forward<true, T> : norm_rope_forward<false, T>;
    run(kernel, grid_of_heads(*a), stream, *a, static_cast<T*>(y));
  });
}

int cuda_norm_rope_grad(const NormRope* a, const void* grad, void* grad_x, Stream stream) {
  return with_type(a->dtype, units_of(*a), [&](auto type) {
    using T = decltype(type);
    const auto kernel = takes_pairs<T>(*a, grad, grad_x) ? norm_rope_gradient<true, T> : norm_rope_gradient<false, T>;
    run(kernel, grid_of_heads(*a), stream, *a, static_cast<const T*>(grad), static_cast<T*>(grad_x));
  });
}

int cuda_norm_rope_sums(const NormRope* a, const void* grad, void* partial, Stream stream) {
  const int64_t parts = (a->samples * a->tokens + kSumTokens - 1) / kSumTokens;
  return with_type(a->dtype, parts, [&](auto type) {
    using T = decltype(type);
    run(sums<T>, blocks_for(parts), stream, *a, parts, static_cast<const T*>(grad), static_cast<float*>(partial));
  });
}

}  // namespace trainer::kernels
