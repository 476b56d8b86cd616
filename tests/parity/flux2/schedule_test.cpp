/// @file Sampling and training schedules against schedule.json.
#include <trainer/sdk/error.hpp>

#include <cmath>
#include <flux2/schedule.hpp>

#include "fixture.hpp"

namespace trainer::flux2 {
namespace {

class Schedule : public ::testing::TestWithParam<std::filesystem::path> {};

TEST_P(Schedule, Sampling) {
  const nlohmann::json cases = read_json(GetParam() / "schedule.json")["sampling"];
  ASSERT_FALSE(cases.empty());
  for (const auto& item : cases) {
    const int64_t tokens = item["image_seq_len"], steps = item["steps"];
    EXPECT_NEAR(empirical_mu(tokens, steps), item["mu"].get<double>(), 1e-12) << tokens << " tokens, " << steps;
    const std::vector<double> sigmas = sampling_sigmas(tokens, steps);
    ASSERT_EQ(sigmas.size(), item["sigmas"].size());
    for (std::size_t i = 0; i < sigmas.size(); ++i) EXPECT_NEAR(sigmas[i], item["sigmas"][i].get<double>(), 1e-6) << i;
    EXPECT_EQ(sigmas.front(), 1.0);
    EXPECT_EQ(sigmas.back(), 0.0);
  }
}

INSTANTIATE_TEST_SUITE_P(Parity, Schedule, ::testing::ValuesIn(parity_directories()), test::DirName{});

TEST(TrainingShift, IsLinearAndNotClamped) {
  EXPECT_DOUBLE_EQ(training_mu(256), 0.5);
  EXPECT_DOUBLE_EQ(training_mu(1024), 0.63);
  EXPECT_DOUBLE_EQ(training_mu(4096), 1.15);
  EXPECT_NEAR(training_mu(16), 0.459375, 1e-12);
  EXPECT_NEAR(training_mu(9216), 2.01666666666, 1e-10);
}

TEST(SamplingShift, NeedsAStep) {
  try {
    sampling_sigmas(256, 0);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::bad_recipe);
    EXPECT_STREQ(error.what(), "sampling needs at least 1 step, got 0");
  }
}

}  // namespace
}  // namespace trainer::flux2
