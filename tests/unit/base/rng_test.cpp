#include <base/rng.hpp>

#include <gtest/gtest.h>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <cmath>
#include <set>

namespace trainer {
namespace {

using Block = std::array<uint32_t, 4>;

/// tests/kat_vectors of Random123 (philox4x32 10).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox(0, {0, 0, 0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~uint64_t{0}, {~0U, ~0U, ~0U, ~0U}), (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(KeyedRng, IsTheDocumentedCounter) {
  KeyedRng rng(42, RngStream::noise, 3, 5);
  const Block first = philox(42, {0, 2U << 24, 3, 5}), second = philox(42, {1, 2U << 24, 3, 5});
  for (const uint32_t word : first) EXPECT_EQ(rng.next_u32(), word);
  EXPECT_EQ(rng.next_u64(), (uint64_t{second[1]} << 32) | second[0]);
}

TEST(KeyedRng, EveryPartOfTheKeyCounts) {
  std::set<uint64_t> seen;
  for (const uint64_t seed : {1ULL, 2ULL, 1ULL << 40}) {
    for (const auto stream : {RngStream::order, RngStream::noise}) {
      for (const uint64_t step : {0ULL, 1ULL, 1ULL << 32}) {
        for (const uint64_t sample : {0ULL, 1ULL, 1ULL << 32, 3ULL << 32}) {
          seen.insert(KeyedRng(seed, stream, step, sample).next_u64());
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 3U * 2 * 3 * 4);
}

TEST(KeyedRng, NormalsDoNotDependOnTheLengthOrThePieces) {
  std::vector<float> whole(101), shorter(7), pieces(10);
  KeyedRng(7, RngStream::noise, 1, 2).fill_normal(whole);
  KeyedRng(7, RngStream::noise, 1, 2).fill_normal(shorter);
  EXPECT_TRUE(std::equal(shorter.begin(), shorter.end(), whole.begin()));
  KeyedRng rng(7, RngStream::noise, 1, 2);
  rng.fill_normal(std::span(pieces).first(4));
  rng.fill_normal(std::span(pieces).last(6));
  EXPECT_TRUE(std::equal(pieces.begin(), pieces.end(), whole.begin()));
}

TEST(KeyedRng, NormalsAreStandardNormal) {
  std::vector<float> values(200'000);
  KeyedRng(1, RngStream::noise).fill_normal(values);
  double sum = 0, squares = 0, fourth = 0;
  for (const double v : values) sum += v, squares += v * v, fourth += v * v * v * v;
  const auto count = static_cast<double>(values.size());
  EXPECT_NEAR(sum / count, 0, 0.01);
  EXPECT_NEAR(squares / count, 1, 0.02);
  EXPECT_NEAR(fourth / count, 3, 0.1);
}

TEST(KeyedRng, UniformsStayInside) {
  std::vector<float> values(100'003);
  KeyedRng(1, RngStream::synthetic).fill_uniform(values, -2.F, 3.F);
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  EXPECT_GE(*low, -2.F);
  EXPECT_LT(*low, -1.999F);
  EXPECT_LT(*high, 3.F);
  EXPECT_GT(*high, 2.999F);
  KeyedRng rng(1, RngStream::timestep);
  double sum = 0;
  for (int i = 0; i < 100'000; ++i) {
    const double u = rng.uniform();
    ASSERT_TRUE(u >= 0 && u < 1);
    sum += u;
  }
  EXPECT_NEAR(sum / 100'000, 0.5, 0.005);
}

TEST(KeyedRng, BelowIsUniformAndRefusesZero) {
  KeyedRng rng(9, RngStream::order);
  std::array<int, 6> counts{};
  for (int i = 0; i < 60'000; ++i) ++counts[rng.below(6)];
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 400);
  EXPECT_EQ(rng.below(1), 0U);
  EXPECT_THROW(rng.below(0), Error);
}

TEST(KeyedRng, PermutationIsOne) {
  const auto order = permutation(1000, KeyedRng(3, RngStream::order, 1));
  EXPECT_EQ(std::set<uint64_t>(order.begin(), order.end()).size(), 1000U);
  EXPECT_EQ(*std::max_element(order.begin(), order.end()), 999U);
  EXPECT_EQ(order, permutation(1000, KeyedRng(3, RngStream::order, 1)));
  EXPECT_NE(order, permutation(1000, KeyedRng(3, RngStream::order, 2)));
  EXPECT_TRUE(permutation(0, KeyedRng(3, RngStream::order)).empty());
}

}  // namespace
}  // namespace trainer
