#include <data/resample.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trainer::data {
namespace {

constexpr double kLobes = 3;
constexpr int kBits = 22;  // of a weight behind the point: 32 less 8 of a byte, a sign, and one for weights above 1
constexpr int32_t kHalf = 1 << (kBits - 1);

double sinc(double x) { return x == 0 ? 1 : std::sin(x * std::numbers::pi) / (x * std::numbers::pi); }

double lanczos(double x) { return x >= -kLobes && x < kLobes ? sinc(x) * sinc(x / kLobes) : 0; }

uint8_t to_byte(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kBits, 0, 255)); }

/// One pixel from `count` of them. A byte beyond the last may be read.
void weigh_pixels(uint8_t* out, const uint8_t* from, const int32_t* weights, int64_t count) {
  int32_t red = kHalf, green = kHalf, blue = kHalf;
  for (int64_t k = 0; k < count; ++k, from += 3) {
    red += from[0] * weights[k];
    green += from[1] * weights[k];
    blue += from[2] * weights[k];
  }
  out[0] = to_byte(red), out[1] = to_byte(green), out[2] = to_byte(blue);
}

inline __attribute__((always_inline)) void add_weighted(int32_t* sums, const uint8_t* row, int32_t weight,
                                                        int64_t size) {
  for (int64_t i = 0; i < size; ++i) sums[i] += row[i] * weight;
}

void add_row(int32_t* sums, const uint8_t* row, int32_t weight, int64_t size) { add_weighted(sums, row, weight, size); }

// The same in whole numbers, so with the same result, where the processor multiplies several at once.
#if defined(__x86_64__)
__attribute__((target("avx2"))) void weigh_pixels_avx2(uint8_t* out, const uint8_t* from, const int32_t* weights,
                                                       int64_t count) {
  __m128i sums = _mm_set1_epi32(kHalf);
  for (int64_t k = 0; k < count; ++k, from += 3) {
    const __m128i pixel = _mm_cvtepu8_epi32(_mm_loadu_si32(from));
    sums = _mm_add_epi32(sums, _mm_mullo_epi32(pixel, _mm_set1_epi32(weights[k])));
  }
  int32_t each[4];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(each), sums);
  for (int i = 0; i < 3; ++i) out[i] = to_byte(each[i]);
}

__attribute__((target("avx2"))) void add_row_avx2(int32_t* sums, const uint8_t* row, int32_t weight, int64_t size) {
  add_weighted(sums, row, weight, size);
}
#endif

}  // namespace

Resampler::Taps Resampler::taps(int64_t from, int64_t to, int64_t kept) {
  const double scale = static_cast<double>(from) / static_cast<double>(to), wide = std::max(scale, 1.0);
  const double support = kLobes * wide;
  Taps taps;
  taps.stride = 2 * static_cast<int64_t>(std::ceil(support)) + 1;
  std::vector<double> weights(static_cast<std::size_t>(taps.stride));
  for (int64_t i = 0; i < kept; ++i) {
    const double centre = (static_cast<double>(i + (to - kept) / 2) + 0.5) * scale;
    const int64_t first = std::max<int64_t>(static_cast<int64_t>(centre - support + 0.5), 0);
    const int64_t count = std::min(static_cast<int64_t>(centre + support + 0.5), from) - first;
    double sum = 0;
    for (int64_t k = 0; k < count; ++k) {
      const double weight = lanczos((static_cast<double>(k + first) - centre + 0.5) / wide);
      weights[static_cast<std::size_t>(k)] = weight;
      sum += weight;
    }
    taps.firsts.push_back(first);
    taps.counts.push_back(count);
    for (int64_t k = 0; k < taps.stride; ++k) {
      const double weight = k < count ? weights[static_cast<std::size_t>(k)] / sum * (1 << kBits) : 0;
      taps.weights.push_back(static_cast<int32_t>(weight + (weight < 0 ? -0.5 : 0.5)));
    }
  }
  return taps;
}

Resampler::Loops Resampler::plain() { return {weigh_pixels, add_row}; }

Resampler::Loops Resampler::fastest() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") != 0) return {weigh_pixels_avx2, add_row_avx2};
#endif
  return plain();
}

Resampler::Resampler(const Sizes& sizes, const Loops& loops)
    : sizes_(sizes),
      loops_(loops),
      columns_(taps(sizes.from_width, sizes.to_width, sizes.width)),
      rows_(taps(sizes.from_height, sizes.to_height, sizes.height)),
      first_row_(rows_.firsts.front()),
      last_row_(rows_.firsts.back() + rows_.counts.back()),
      row_(static_cast<std::size_t>(3 * sizes.from_width + 1)),
      narrow_(static_cast<std::size_t>(3 * sizes.width * (last_row_ - first_row_))) {}

void Resampler::add(const uint8_t* row) {
  const int64_t at = next_++;
  if (at < first_row_ || at >= last_row_) return;
  uint8_t* out = narrow_.data() + 3 * sizes_.width * (at - first_row_);
  if (sizes_.from_width == sizes_.to_width) {
    std::memcpy(out, row + 3 * ((sizes_.to_width - sizes_.width) / 2), static_cast<std::size_t>(3 * sizes_.width));
    return;
  }
  std::memcpy(row_.data(), row, row_.size() - 1);
  const int32_t* weights = columns_.weights.data();
  for (std::size_t x = 0; x < columns_.firsts.size(); ++x, weights += columns_.stride, out += 3)
    loops_.weigh_pixels(out, row_.data() + 3 * columns_.firsts[x], weights, columns_.counts[x]);
}

void Resampler::finish(uint8_t* rgb) const {
  const int64_t width = 3 * sizes_.width;
  std::vector<int32_t> sums(static_cast<std::size_t>(width));
  for (std::size_t y = 0; y < rows_.firsts.size(); ++y, rgb += width) {
    const uint8_t* from = narrow_.data() + width * (rows_.firsts[y] - first_row_);
    if (sizes_.from_height == sizes_.to_height) {
      const auto same = static_cast<int64_t>(y) + (sizes_.to_height - sizes_.height) / 2;
      std::memcpy(rgb, narrow_.data() + width * (same - first_row_), static_cast<std::size_t>(width));
      continue;
    }
    std::fill(sums.begin(), sums.end(), kHalf);
    const int32_t* weights = rows_.weights.data() + static_cast<int64_t>(y) * rows_.stride;
    for (int64_t k = 0; k < rows_.counts[y]; ++k, from += width) loops_.add_row(sums.data(), from, weights[k], width);
    for (int64_t i = 0; i < width; ++i) rgb[i] = to_byte(sums[static_cast<std::size_t>(i)]);
  }
}

}  // namespace trainer::data
