/// @file The run's randomness: a function of seed, purpose, step and sample, whatever the micro-batch.
#include <gtest/gtest.h>

#include <execution/keyed_random.hpp>
#include <support/parity.hpp>

namespace trainer::execution {
namespace {

Batch batch_of(std::vector<uint64_t> keys, uint64_t step = 3) {
  Batch batch;
  batch.sample_keys = std::move(keys);
  batch.step = step;
  return batch;
}

TEST(KeyedRandom, DoesNotDependOnTheMicroBatch) {
  const KeyedRandom random(11);
  const Batch whole = batch_of({40, 41, 42});
  const at::Tensor noise = random.noise(whole, {2, 3, 5});
  EXPECT_EQ(noise.sizes(), (std::vector<int64_t>{3, 2, 3, 5}));
  for (int64_t b = 0; b < 3; ++b) {
    const Batch one = batch_of({whole.sample_keys[static_cast<std::size_t>(b)]});
    EXPECT_TRUE(test::same_bits(random.noise(one, {2, 3, 5})[0], noise[b]));
    EXPECT_EQ(random.uniform(one, 0, 2), random.uniform(whole, b, 2));
    EXPECT_EQ(random.normal(one, 0, 1), random.normal(whole, b, 1));
  }
}

TEST(KeyedRandom, DependsOnSeedStepAndSample) {
  const KeyedRandom random(11), other(12);
  const Batch batch = batch_of({40}), next_step = batch_of({40}, 4), next_sample = batch_of({41});
  const at::Tensor noise = random.noise(batch, {8});
  EXPECT_TRUE(test::same_bits(noise, random.noise(batch, {8}))) << "asking again";
  for (const at::Tensor& different :
       {other.noise(batch, {8}), random.noise(next_step, {8}), random.noise(next_sample, {8})})
    EXPECT_FALSE(test::same_bits(noise, different));
  EXPECT_NE(random.uniform(batch, 0, 1), random.uniform(next_step, 0, 1));
  EXPECT_NE(random.uniform(batch, 0, 1), other.uniform(batch, 0, 1));
  EXPECT_NE(random.normal(batch, 0, 1), random.normal(next_sample, 0, 1));
}

TEST(KeyedRandom, PurposesAreIndependent) {
  const KeyedRandom random(11);
  std::vector<uint64_t> keys(4000);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  const Batch batch = batch_of(keys);
  const at::Tensor noise = random.noise(batch, {1});
  double sums[3] = {0, 0, 0}, count = static_cast<double>(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto b = static_cast<int64_t>(i);
    const double u = random.uniform(batch, b, 2)[1] - 0.5, n = random.normal(batch, b, 1)[0],
                 e = noise[b].item<double>();
    sums[0] += u * n, sums[1] += n * e, sums[2] += u * e;
  }
  for (const double sum : sums) EXPECT_LE(std::abs(sum / count), 4 / std::sqrt(count)) << "uncorrelated";
}

}  // namespace
}  // namespace trainer::execution
