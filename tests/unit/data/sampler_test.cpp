#include <data/sampler.hpp>

#include "helpers.hpp"

#include <algorithm>
#include <map>
#include <set>

namespace trainer::data {
namespace {

/// `counts[b]` samples in bucket b, numbered through.
std::vector<SamplerItem> items_of(const std::vector<int>& counts) {
  std::vector<SamplerItem> items;
  for (std::size_t bucket = 0; bucket < counts.size(); ++bucket) {
    items.insert(items.end(), static_cast<std::size_t>(counts[bucket]), {1000 + bucket, 1});
  }
  return items;
}

std::vector<Draw> step_of(const Sampler& sampler, uint64_t step) {
  std::vector<Draw> draws;
  for (int64_t micro = 0; micro < sampler.micros(); ++micro) {
    const auto more = sampler.batch(step, micro);
    draws.insert(draws.end(), more.begin(), more.end());
  }
  return draws;
}

TEST(Sampler, OneBucketIsOnePermutationAfterAnother) {
  const auto items = items_of({20});
  const Sampler sampler(items, {.seed = 7, .batch_size = 8});
  EXPECT_EQ(sampler.epoch_size(), 20U);
  std::vector<std::size_t> order;
  for (uint64_t step = 0; step < 10; ++step) {
    for (const Draw& draw : step_of(sampler, step)) {
      EXPECT_EQ(draw.key, order.size());
      order.push_back(draw.sample);
    }
  }
  ASSERT_EQ(order.size(), 80U);
  for (std::size_t epoch = 0; epoch < 4; ++epoch) {
    const auto begin = order.begin() + static_cast<std::ptrdiff_t>(20 * epoch);
    EXPECT_EQ(std::set<std::size_t>(begin, begin + 20).size(), 20U) << epoch;
  }
  EXPECT_FALSE(std::equal(order.begin(), order.begin() + 20, order.begin() + 20));
  EXPECT_FALSE(std::is_sorted(order.begin(), order.begin() + 20));
}

TEST(Sampler, AStepDoesNotDependOnWhatWasAskedBefore) {
  const auto items = items_of({3, 9, 1});
  const SamplerOptions options{.seed = 5, .batch_size = 4, .micro_batch_size = 2, .caption_dropout = 0.3};
  const Sampler forward(items, options), backward(items, options);
  std::map<uint64_t, std::vector<Draw>> expected;
  for (uint64_t step = 0; step < 60; ++step) expected[step] = step_of(forward, step);
  for (uint64_t step = 60; step-- > 0;) EXPECT_EQ(step_of(backward, step), expected[step]) << step;
  EXPECT_EQ(step_of(Sampler(items, options), 37), expected[37]);
  EXPECT_NE(step_of(Sampler(items, {.seed = 6, .batch_size = 4}), 0),
            step_of(Sampler(items, {.seed = 5, .batch_size = 4}), 0));
}

TEST(Sampler, TheMicroBatchSizeChangesNothing) {
  const auto items = items_of({5, 2, 8});
  SamplerOptions options{.seed = 11, .batch_size = 8, .micro_batch_size = 8, .caption_dropout = 0.5};
  const Sampler whole(items, options);
  for (const int64_t micro : {1, 2, 4}) {
    options.micro_batch_size = micro;
    const Sampler pieces(items, options);
    EXPECT_EQ(pieces.micros(), 8 / micro);
    for (uint64_t step = 0; step < 50; ++step) EXPECT_EQ(step_of(pieces, step), step_of(whole, step));
  }
}

TEST(Sampler, MicroBatchesHoldOneBucketAndEverySampleHasItsShare) {
  const std::vector<int> counts = {7, 1, 3};
  auto items = items_of(counts);
  items[7].repeats = 2;  // the single one of bucket 1: 12 instances in all
  for (const int64_t group : {0, 2}) {
    const Sampler sampler(items, {.seed = 3, .batch_size = 4, .micro_batch_size = 2, .group_size = group});
    ASSERT_EQ(sampler.epoch_size(), 12U);
    // A cycle: 12 groups; every sample is drawn group_size * repeats times in it, in every cycle.
    const uint64_t group_size = group == 0 ? 4 : 2, steps = 12 * group_size / 4;
    for (uint64_t cycle = 0; cycle < 3; ++cycle) {
      std::map<std::size_t, uint64_t> drawn;
      for (uint64_t step = cycle * steps; step < (cycle + 1) * steps; ++step) {
        for (int64_t micro = 0; micro < 2; ++micro) {
          const auto draws = sampler.batch(step, micro);
          ASSERT_EQ(draws.size(), 2U);
          EXPECT_EQ(items[draws[0].sample].bucket, items[draws[1].sample].bucket);
          for (const Draw& draw : draws) ++drawn[draw.sample];
        }
        const auto all = step_of(sampler, step);
        EXPECT_TRUE(group != 0 || items[all[0].sample].bucket == items[all[3].sample].bucket);
      }
      ASSERT_EQ(drawn.size(), 11U);
      for (const auto& [sample, times] : drawn) EXPECT_EQ(times, sample == 7 ? 2 * group_size : group_size) << sample;
    }
  }
}

TEST(Sampler, BucketsAreServedEvenly) {
  const auto items = items_of({90, 10});
  const Sampler sampler(items, {.seed = 1, .batch_size = 1});
  std::vector<uint64_t> rare;
  for (uint64_t step = 0; step < 1000; ++step) {
    if (items[sampler.batch(step, 0)[0].sample].bucket == 1001) rare.push_back(step);
  }
  ASSERT_EQ(rare.size(), 100U);
  for (std::size_t i = 1; i < rare.size(); ++i) EXPECT_LE(rare[i] - rare[i - 1], 22U);
}

TEST(Sampler, CaptionsAreDroppedByKeyAtTheRate) {
  const auto items = items_of({10});
  const Sampler sampler(items, {.seed = 9, .batch_size = 10, .caption_dropout = 0.25});
  int dropped = 0;
  for (uint64_t step = 0; step < 1000; ++step) {
    for (const Draw& draw : step_of(sampler, step)) dropped += draw.drop_caption ? 1 : 0;
  }
  EXPECT_NEAR(dropped, 2500, 130);  // three standard deviations
  for (const double rate : {0.0, 1.0}) {
    for (const Draw& draw : Sampler(items, {.batch_size = 10, .caption_dropout = rate}).batch(3, 0)) {
      EXPECT_EQ(draw.drop_caption, rate == 1.0);
    }
  }
}

TEST(Sampler, TheOrderOfASeedIsFixed) {
  // Part of the checkpoint format: a change here breaks resumes.
  const auto items = items_of({4, 2});
  const Sampler sampler(items, {.seed = 42, .batch_size = 2, .caption_dropout = 0.5});
  std::string text;
  for (uint64_t step = 0; step < 6; ++step) {
    for (const Draw& draw : step_of(sampler, step))
      text += std::to_string(draw.sample) + (draw.drop_caption ? "- " : " ");
  }
  EXPECT_EQ(text, "4 5- 1 3 2 0- 0 1 3- 2- 4 5 ");
}

TEST(Sampler, RefusesSizesThatDoNotDivide) {
  const auto items = items_of({4});
  const auto refusal = [&](const SamplerOptions& options) { return message_of([&] { Sampler(items, options); }); };
  EXPECT_EQ(refusal({.batch_size = 4, .micro_batch_size = 3}),
            "train: micro_batch_size (3) must divide batch_size (4)");
  EXPECT_EQ(refusal({.batch_size = 4, .group_size = 3}), "train: group_size (3) must divide batch_size (4)");
  EXPECT_EQ(refusal({.batch_size = 4, .micro_batch_size = 4, .group_size = 2}),
            "train: micro_batch_size (4) must divide group_size (2)");
  EXPECT_EQ(refusal({.batch_size = 0}), "train: batch_size must be at least 1");
  EXPECT_EQ(message_of([] { Sampler({}, {}); }), "there is no sample to train on");
  EXPECT_EQ(message_of([] { Sampler(std::vector<SamplerItem>{{1, 0}}, {}); }), "data: repeats must be at least 1");
}

}  // namespace
}  // namespace trainer::data
