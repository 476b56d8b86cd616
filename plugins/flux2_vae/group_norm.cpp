#include "group_norm.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/silu.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

namespace trainer::flux2_vae {
namespace {

/// Pixels whose sums make one part: a constant, whatever the threads. Of 512 channels they fit a core's own cache.
constexpr int64_t kChunk = 256;
/// Elements that are worth a thread; says how chunks are dealt out, not what is computed.
constexpr int64_t kGrain = 32768;

/// A channels-last map in memory: [batch][pixels][channels].
struct Map {
  int64_t batch, pixels, channels, groups;
  [[nodiscard]] int64_t chunks() const { return (pixels + kChunk - 1) / kChunk; }  ///< of a sample
  [[nodiscard]] int64_t first(int64_t chunk) const { return chunk * kChunk; }
  [[nodiscard]] int64_t size(int64_t chunk) const { return std::min(kChunk, pixels - first(chunk)); }
};

/// Of the elements of one group: their mean, and the sum of squares of what differs from it.
struct Moments {
  double mean = 0, squares = 0;
};

/// e^x for -87 <= x <= 0 with an error of about 1e-7. Source: Cephes' expf; written without branches or calls so that
/// compilers turn loops of it into vectors.
inline float exponential(float x) {
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer in the last bits
  const float shifted = x * 1.44269504088896341F + kRound, whole = shifted - kRound;
  const float r = (x - whole * 0.693359375F) + whole * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  const int32_t power = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  return (p * r * r + r + 1.0F) * std::bit_cast<float>((power + 127) << 23);
}

/// x / (1 + e^-x), with e^-|x| so that nothing overflows; NaN stays NaN. Choices are made on bits: compilers leave
/// comparisons of floats out of vectors.
inline float silu(float x) {
  const auto bits = std::bit_cast<int32_t>(x);
  const int32_t size = std::min(bits & 0x7FFFFFFF, std::bit_cast<int32_t>(87.0F)), negative = bits >> 31;
  const float e = exponential(-std::bit_cast<float>(size));
  const int32_t above = (std::bit_cast<int32_t>(x * e) & negative) | (bits & ~negative);  // x < 0 ? x * e : x
  return std::bit_cast<float>(above) / (1.0F + e);
}

/// The loops over a pixel's channels are compiled once for each level of x86-64 and chosen when the library is loaded.
/// Not under sanitizers, whose runtime is not there yet when that happens.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define TRAINER_EACH_LEVEL __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TRAINER_EACH_LEVEL
#endif

TRAINER_EACH_LEVEL void widen(const uint16_t* x, float* __restrict to, int64_t channels) {
  for (int64_t c = 0; c < channels; ++c) to[c] = std::bit_cast<float>(static_cast<uint32_t>(x[c]) << 16);
}

TRAINER_EACH_LEVEL void narrow(const float* from, uint16_t* __restrict y, int64_t channels) {
  for (int64_t c = 0; c < channels; ++c) {
    const auto bits = std::bit_cast<uint32_t>(from[c]);
    const uint32_t nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;  // ties to even
    y[c] = static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : nearest);
  }
}

TRAINER_EACH_LEVEL void add_pixel(const float* values, const float* base, float* __restrict sum,
                                  float* __restrict squares, int64_t channels) {
  for (int64_t c = 0; c < channels; ++c) {
    const float d = values[c] - base[c];
    sum[c] += d;
    squares[c] += d * d;
  }
}

TRAINER_EACH_LEVEL void scale_pixel(const float* from, const float* scale, const float* shift, float* __restrict to,
                                    int64_t channels) {
  for (int64_t c = 0; c < channels; ++c) to[c] = from[c] * scale[c] + shift[c];
}

TRAINER_EACH_LEVEL void silu_pixel(const float* from, const float* scale, const float* shift, float* __restrict to,
                                   int64_t channels) {
  for (int64_t c = 0; c < channels; ++c) to[c] = silu(from[c] * scale[c] + shift[c]);
}

/// The channels of a pixel as fp32: in place, or converted into `room`.
const float* read(const float* x, float* /*room*/, int64_t /*channels*/) { return x; }
const float* read(const uint16_t* x, float* room, int64_t channels) {
  widen(x, room, channels);
  return room;
}

/// Where the channels of a pixel are computed before `write`.
float* place(float* y, float* /*room*/) { return y; }
float* place(uint16_t* /*y*/, float* room) { return room; }

void write(const float* /*from*/, float* /*y*/, int64_t /*channels*/) {}
void write(const float* from, uint16_t* y, int64_t channels) { narrow(from, y, channels); }

/// Moments of each group in one chunk. Values are taken relative to the chunk's first pixel, so that fp32 sums of
/// squares keep their digits where the mean is large.
template <typename T>
void chunk_moments(const T* x, int64_t pixels, const Map& map, std::vector<float>& room, Moments* to) {
  const int64_t channels = map.channels, width = channels / map.groups;
  room.assign(4 * channels, 0.0F);
  float *const base = room.data(), *const row = base + channels;
  float *const sum = row + channels, *const squares = sum + channels;
  std::copy_n(read(x, row, channels), channels, base);
  for (int64_t p = 1; p < pixels; ++p) {
    add_pixel(read(x + p * channels, row, channels), base, sum, squares, channels);
  }
  const auto n = static_cast<double>(pixels);
  const auto mean = [&](int64_t c) { return base[c] + sum[c] / n; };
  for (int64_t g = 0; g < map.groups; ++g) {
    Moments all;
    for (int64_t c = g * width; c < (g + 1) * width; ++c) all.mean += mean(c) / static_cast<double>(width);
    for (int64_t c = g * width; c < (g + 1) * width; ++c) {
      const double off = mean(c) - all.mean;
      all.squares += squares[c] - sum[c] * (sum[c] / n) + n * off * off;
    }
    to[g] = all;
  }
}

/// y = x * scale + shift of each channel, for a sample: `parts` are its chunks' moments. In the order of the chunks.
void channel_scales(const Moments* parts, const Map& map, const float* weight, const float* bias, double eps,
                    float* scale, float* shift) {
  const int64_t width = map.channels / map.groups;
  for (int64_t g = 0; g < map.groups; ++g) {
    double mean = 0, squares = 0;
    const auto share = [&](int64_t k) { return static_cast<double>(map.size(k)) / static_cast<double>(map.pixels); };
    for (int64_t k = 0; k < map.chunks(); ++k) mean += parts[k * map.groups + g].mean * share(k);
    for (int64_t k = 0; k < map.chunks(); ++k) {
      const Moments& part = parts[k * map.groups + g];
      squares += part.squares + static_cast<double>(map.size(k) * width) * (part.mean - mean) * (part.mean - mean);
    }
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(map.pixels * width) + eps);
    for (int64_t c = g * width; c < (g + 1) * width; ++c) {
      scale[c] = static_cast<float>(rstd * weight[c]);
      shift[c] = static_cast<float>(bias[c] - mean * rstd * weight[c]);
    }
  }
}

template <typename T>
void chunk_result(const T* x, T* y, int64_t pixels, int64_t channels, const float* scale, const float* shift, Then then,
                  std::vector<float>& room) {
  room.resize(2 * channels);
  for (int64_t p = 0; p < pixels; ++p, x += channels, y += channels) {
    const float* const from = read(x, room.data(), channels);
    float* const to = place(y, room.data() + channels);
    (then == Then::silu ? silu_pixel : scale_pixel)(from, scale, shift, to, channels);
    write(to, y, channels);
  }
}

/// `work(sample, chunk)` of every chunk of every sample, on LibTorch's threads.
template <typename Work>
void each_chunk(const Map& map, const Work& work) {
  const int64_t grain = std::max<int64_t>(kGrain / (kChunk * map.channels), 1);
  at::parallel_for(0, map.batch * map.chunks(), grain, [&](int64_t begin, int64_t end) {
    std::vector<float> room;
    for (int64_t i = begin; i < end; ++i) work(i / map.chunks(), i % map.chunks(), room);
  });
}

template <typename T>
void normalise(const T* x, T* y, const Map& map, const float* weight, const float* bias, double eps, Then then) {
  std::vector<Moments> parts(map.batch * map.chunks() * map.groups);
  std::vector<float> scales(map.batch * 2 * map.channels);
  const auto at = [&](int64_t b, int64_t k) { return (b * map.pixels + map.first(k)) * map.channels; };
  Moments* const first = parts.data();
  each_chunk(map, [&](int64_t b, int64_t k, std::vector<float>& room) {
    chunk_moments(x + at(b, k), map.size(k), map, room, first + (b * map.chunks() + k) * map.groups);
  });
  const auto scale = [&](int64_t b) { return scales.data() + b * 2 * map.channels; };
  for (int64_t b = 0; b < map.batch; ++b) {
    channel_scales(first + b * map.chunks() * map.groups, map, weight, bias, eps, scale(b), scale(b) + map.channels);
  }
  each_chunk(map, [&](int64_t b, int64_t k, std::vector<float>& room) {
    chunk_result(x + at(b, k), y + at(b, k), map.size(k), map.channels, scale(b), scale(b) + map.channels, then, room);
  });
}

/// Maps of one pixel are in both formats; LibTorch's sums of the other one do not depend on threads.
bool ours(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16) && x.numel() > 0 &&
         x.is_contiguous(at::MemoryFormat::ChannelsLast) && !x.is_contiguous() && !x.requires_grad();
}

}  // namespace

at::Tensor group_norm(const at::Tensor& x, int64_t groups, const at::Tensor& weight, const at::Tensor& bias, double eps,
                      Then then) {
  if (!ours(x)) {
    at::Tensor y = at::group_norm(x, groups, weight, bias, eps);
    return then == Then::silu ? at::silu_(y) : y;
  }
  const Map map{x.size(0), x.size(2) * x.size(3), x.size(1), groups};
  const at::Tensor y = at::empty_like(x), by = weight.to(at::kFloat).contiguous(),
                   plus = bias.to(at::kFloat).contiguous();
  const auto *const scale = by.const_data_ptr<float>(), *const shift = plus.const_data_ptr<float>();
  if (x.scalar_type() == at::kFloat) {
    normalise(x.const_data_ptr<float>(), y.mutable_data_ptr<float>(), map, scale, shift, eps, then);
  } else {
    normalise(static_cast<const uint16_t*>(x.const_data_ptr()), static_cast<uint16_t*>(y.mutable_data_ptr()), map,
              scale, shift, eps, then);
  }
  return y;
}

}  // namespace trainer::flux2_vae
