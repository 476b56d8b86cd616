// The validation loss: fixed by weights and samples alone, whoever computes it, and without any effect on training.
#include "toy_run.hpp"

#include <gtest/gtest.h>
#include <support/groups.hpp>

#include <ATen/ops/equal.h>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <run/fixed_random.hpp>
#include <run/history.hpp>
#include <run/validation_loss.hpp>

#include <unistd.h>
#include <filesystem>

namespace trainer::execution {
namespace {

using distributed::Group;
using distributed::testing::message_of;
using distributed::testing::run_ranks;

constexpr int64_t kSamples = 5, kTimesteps = 3;

std::optional<run::ValidationLoss> measure(ToyRun& run, ToyData& data, Group& ranks = Group::alone(),
                                           const run::ValidationWatch& watch = {}) {
  run::ValidationParts parts{run.model, run.objective, run.memory, run.placement, data, kTimesteps, 3};
  return run::validate(parts, ranks, watch);
}

Batch batch_of(uint64_t timestep, std::vector<uint64_t> keys) {
  Batch batch;
  batch.step = timestep;
  batch.sample_keys = std::move(keys);
  return batch;
}

TEST(FixedRandom, SpreadsTimestepsEvenlyOverTheDistribution) {
  const run::FixedRandom random(7, 4);
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(random.uniform(batch_of(i, {9}), 0, 1), (std::vector<double>{(static_cast<double>(i) + 0.5) / 4}));
    EXPECT_DOUBLE_EQ(random.normal(batch_of(i, {9}), 0, 1)[0],
                     run::normal_quantile((static_cast<double>(i) + 0.5) / 4));
  }
  EXPECT_EQ(random.uniform(batch_of(3, {9}), 0, 3), (std::vector<double>{0.875, 1.0 / 9 + 0.125, 0.875}));
  for (const int64_t count : {1, 2, 3, 5, 8, 100, 1000})
    for (const double one : run::FixedRandom(7, count).uniform(batch_of(static_cast<uint64_t>(count - 1), {9}), 0, 8))
      EXPECT_TRUE(one > 0 && one < 1) << one << " of " << count;
  EXPECT_THROW(static_cast<void>(random.uniform(batch_of(0, {9}), 0, 9)), Error);
}

TEST(FixedRandom, NoiseIsThatOfTheSampleWhateverItsCompany) {
  const run::FixedRandom random(7, 4);
  const at::Tensor both = random.noise(batch_of(1, {4, 9}), {2, 3});
  EXPECT_TRUE(at::equal(both[1], random.noise(batch_of(1, {9}), {2, 3})[0]));
  EXPECT_FALSE(at::equal(both[1], random.noise(batch_of(2, {9}), {2, 3})[0]));
  EXPECT_FALSE(at::equal(both[1], run::FixedRandom(8, 4).noise(batch_of(1, {9}), {2, 3})[0]));
}

TEST(FixedRandom, NormalQuantiles) {
  EXPECT_EQ(run::normal_quantile(0.5), 0);
  EXPECT_NEAR(run::normal_quantile(0.975), 1.959963984540054, 1e-14);
  EXPECT_NEAR(run::normal_quantile(1e-9), -5.997807015007686, 1e-13);
  EXPECT_NEAR(run::normal_quantile(1e-20), -9.262340089798408, 1e-13);
}

TEST(Validation, IsTheSameUntilTheWeightsChange) {
  ToyRun run;
  ToyData data(kSamples, 1);
  const auto first = measure(run, data), again = measure(run, data);
  ASSERT_TRUE(first && again);
  EXPECT_EQ(first->losses, again->losses);
  ASSERT_EQ(first->losses.size(), static_cast<std::size_t>(kTimesteps));
  EXPECT_NEAR((first->losses[0] + first->losses[1] + first->losses[2]) / 3, first->loss, 1e-12);
  ASSERT_EQ(first->times.size(), static_cast<std::size_t>(kTimesteps));
  EXPECT_LT(first->times[0], first->times[1]);
  EXPECT_LT(first->times[1], first->times[2]);
  run.train_to(2);
  EXPECT_NE(measure(run, data)->loss, first->loss);
}

TEST(Validation, IsTheMeanOfWhatTheObjectiveSays) {
  ToyRun run;
  ToyData data(kSamples, 1);
  const run::FixedRandom random(3, kTimesteps);
  const run::ValidationParts parts{run.model, run.objective, run.memory, run.placement, data, kTimesteps, 3};
  double sum = 0;
  for (int64_t sample = 0; sample < kSamples; ++sample)
    sum += run::loss_at(parts, random, 1, sample).second.item<double>();
  EXPECT_NEAR(measure(run, data)->losses[1], sum / kSamples, 1e-12);
}

TEST(Validation, LeavesTrainingAsItWas) {
  ToyRun without, with;
  const std::vector<double> losses = without.train_to(4);
  ToyData data(kSamples, 1);
  std::vector<double> others;
  for (int64_t step = 1; step <= 4; ++step) {
    measure(with, data);
    const auto more = with.train_to(step);
    others.insert(others.end(), more.begin(), more.end());
  }
  EXPECT_EQ(losses, others);
  for (const auto& [name, value] : without.values()) EXPECT_TRUE(at::equal(value, with.values().at(name))) << name;
}

TEST(Validation, DoesNotDependOnTheNumberOfRanks) {
  ToyRun run;
  ToyData samples(kSamples, 1);
  const auto one = measure(run, samples);
  for (const int ranks : {2, 3, 7}) {  // with a share of two, of one or two, and for some none
    const auto problems = run_ranks(ranks, std::chrono::seconds(60), [&](Group& group) {
      ToyRun own;
      ToyData data(kSamples, 1);
      const auto result = measure(own, data, group);
      EXPECT_TRUE(result);
      EXPECT_EQ(result->loss, one->loss);
      EXPECT_EQ(result->losses, one->losses);
      EXPECT_EQ(result->times, one->times);
    });
    for (const auto& problem : problems) ASSERT_FALSE(problem) << message_of(problem);
  }
}

TEST(Validation, OneRankThatIsStoppedEndsItForAll) {
  const auto problems = run_ranks(2, std::chrono::seconds(60), [](Group& group) {
    ToyRun run;
    ToyData data(kSamples, 1);
    run::ValidationWatch watch;
    watch.stop = [&] { return group.rank() == 1; };
    EXPECT_FALSE(measure(run, data, group, watch));
  });
  for (const auto& problem : problems) EXPECT_FALSE(problem) << message_of(problem);
}

TEST(Validation, NamesTheFileOfALossThatIsNotFinite) {
  ToyRun run;
  ToyData data(kSamples, 1);
  data.poisoned = 2;
  const auto result = measure(run, data);
  ASSERT_TRUE(result);
  EXPECT_TRUE(std::isnan(result->loss));
  EXPECT_EQ(result->bad, (std::vector<std::string>{"picture-2.png"}));
}

TEST(Validation, AForwardThatThrowsIsToldAndNoLoss) {
  class Empty final : public BatchSource {
   public:
    [[nodiscard]] int64_t micro_batches() const override { return 1; }
    Batch batch(int64_t, int64_t) override { throw Error(ExitCode::bad_input, "damaged entry"); }
    [[nodiscard]] std::vector<std::string> files(int64_t, int64_t) const override { return {"a.png"}; }
  };
  ToyRun run;
  Empty data;
  std::string told;
  run::ValidationWatch watch;
  watch.warn = [&](const std::string& problem) { told = problem; };
  const run::ValidationParts parts{run.model, run.objective, run.memory, run.placement, data, 2, 0};
  EXPECT_FALSE(run::validate(parts, Group::alone(), watch));
  EXPECT_EQ(told, "damaged entry");
}

TEST(ValidationHistory, IsReadFromTheLog) {
  const auto file = std::filesystem::temp_directory_path() / ("validation-" + std::to_string(::getpid()) + ".jsonl");
  std::ofstream(file) << R"({"step":0,"validation_loss":0.5})"
                      << "\n"
                      << R"({"step":1,"loss":2.0})"
                      << "\n"
                      << R"({"step":2,"validation_loss":0.25})"
                      << "\n"
                      << R"({"step":3,"validation_loss":null})"
                      << "\n"
                      << R"({"step":4,"validation_loss":0.3)"
                      << "\n";
  const std::vector<run::ValidationPoint> points = run::read_validations(file);
  std::filesystem::remove(file);
  ASSERT_EQ(points.size(), 3U);
  EXPECT_TRUE(run::holds_step(points, 2) && run::holds_step(points, 3));
  EXPECT_FALSE(run::holds_step(points, 1));
  EXPECT_EQ(run::in_words(points), "0.5000 (step 0) -> nan (step 3), lowest 0.2500 at step 2");
  EXPECT_EQ(run::to_json(points)["lowest"].dump(), R"({"step":2,"loss":0.25})");
  EXPECT_TRUE(run::read_validations(file).empty());
}

}  // namespace
}  // namespace trainer::execution
