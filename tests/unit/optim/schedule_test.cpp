/// @file Learning rates at the steps that matter.
#include <gtest/gtest.h>
#include <optim/lr_schedule.hpp>
#include <trainer/sdk/error.hpp>

namespace trainer::optim {
namespace {

LrSchedule schedule(const std::string& kind, int64_t warmup = 0, int64_t total = 100, double floor = 0,
                    int64_t cycles = 1) {
  return {kind, 2e-4, warmup, total, floor, cycles};
}

TEST(Schedule, ConstantWithWarmup) {
  EXPECT_EQ(schedule("constant").at(0), 2e-4);
  EXPECT_EQ(schedule("constant").at(99999), 2e-4);
  const LrSchedule warm = schedule("constant", 4);
  EXPECT_DOUBLE_EQ(warm.at(0), 0.5e-4);
  EXPECT_DOUBLE_EQ(warm.at(1), 1e-4);
  EXPECT_DOUBLE_EQ(warm.at(3), 2e-4);
  EXPECT_EQ(warm.at(4), 2e-4);
}

TEST(Schedule, LinearFallsFromTheEndOfTheWarmup) {
  const LrSchedule linear = schedule("linear", 20, 100, 0.1);
  EXPECT_DOUBLE_EQ(linear.at(9), 1e-4);
  EXPECT_DOUBLE_EQ(linear.at(20), 2e-4);
  EXPECT_DOUBLE_EQ(linear.at(60), 2e-4 * (0.1 + 0.9 * 0.5));
  EXPECT_DOUBLE_EQ(linear.at(100), 2e-5);
  EXPECT_DOUBLE_EQ(linear.at(1000), 2e-5) << "stays at the end";
}

TEST(Schedule, Cosine) {
  const LrSchedule cosine = schedule("cosine", 0, 100, 0.1);
  EXPECT_DOUBLE_EQ(cosine.at(0), 2e-4);
  EXPECT_DOUBLE_EQ(cosine.at(50), 2e-4 * (0.1 + 0.9 * 0.5));
  EXPECT_NEAR(cosine.at(100), 2e-5, 1e-19);
}

TEST(Schedule, CosineRestarts) {
  const LrSchedule restarts = schedule("cosine_restarts", 0, 100, 0, 4);
  for (const int64_t start : {0, 25, 50, 75}) {
    EXPECT_DOUBLE_EQ(restarts.at(start), 2e-4) << start;
    EXPECT_LT(restarts.at(start + 24), 2e-6) << start;
  }
  EXPECT_EQ(restarts.at(100), 0);
}

TEST(Schedule, DegenerateLengths) {
  EXPECT_DOUBLE_EQ(schedule("cosine", 10, 10).at(9), 2e-4) << "nothing but warm-up";
  EXPECT_DOUBLE_EQ(schedule("linear", 0, 1).at(0), 2e-4);
}

TEST(Schedule, UnknownKindIsAnError) { EXPECT_THROW((void)schedule("polynomial").at(0), Error); }

}  // namespace
}  // namespace trainer::optim
