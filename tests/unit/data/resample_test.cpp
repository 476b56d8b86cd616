/// @file The loops for processors that multiply several numbers at once make the bytes of the plain ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <base/rng.hpp>
#include <data/resample.hpp>
#include <vector>

namespace trainer::data {
namespace {

std::vector<uint8_t> resized(const Resampler::Sizes& sizes, const Resampler::Loops& loops) {
  KeyedRng random(1, RngStream::synthetic, 0, 0);
  Resampler resampler(sizes, loops);
  for (int64_t y = 0; y < sizes.from_height; ++y) {
    std::vector<uint8_t> row(static_cast<std::size_t>(3 * sizes.from_width));  // nothing may be read beyond it
    for (uint8_t& byte : row) {
      const double value = random.uniform();
      byte = static_cast<uint8_t>(value < 0.3 ? 0 : value > 0.7 ? 255 : 256 * value);  // many at the ends
    }
    resampler.add(row.data());
  }
  std::vector<uint8_t> rgb(static_cast<std::size_t>(3 * sizes.width * sizes.height));
  resampler.finish(rgb.data());
  return rgb;
}

TEST(Resampler, AllLoopsMakeTheSameBytes) {
  for (const Resampler::Sizes& sizes : {Resampler::Sizes{128, 128, 64, 64, 64, 64},
                                        {160, 128, 80, 64, 64, 64},
                                        {1, 1, 5, 5, 5, 5},
                                        {7, 5, 3, 2, 1, 2},
                                        {16, 9, 40, 23, 33, 20},
                                        {333, 61, 32, 61, 17, 9}}) {
    const std::vector<uint8_t> plain = resized(sizes, Resampler::plain());
    EXPECT_EQ(resized(sizes, Resampler::fastest()), plain) << sizes.from_width << " x " << sizes.from_height;
    EXPECT_NE(std::count(plain.begin(), plain.end(), plain[0]), static_cast<std::ptrdiff_t>(plain.size()));
  }
}

}  // namespace
}  // namespace trainer::data
