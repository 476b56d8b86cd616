/// @file The orders that the split placement makes: complete, possible, and no longer than they must be.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "schedule.hpp"

namespace trainer::split {
namespace {

using Steps = std::vector<ScheduleStep>;
constexpr auto F = Pass::forward, B = Pass::backward;

/// When all is done if a forward takes 1 and a backward 2 on every stage, each stage working in its order.
int64_t makespan(const Steps& steps) {
  std::map<std::tuple<Pass, int64_t, int64_t>, int64_t> end;
  std::map<int64_t, int64_t> free;
  int64_t stages = 0, latest = 0;
  for (const ScheduleStep& step : steps) stages = std::max(stages, step.stage + 1);
  for (const ScheduleStep& step : steps) {
    int64_t start = free[step.stage];
    const auto after = [&](Pass pass, int64_t stage) {
      const auto it = end.find({pass, stage, step.micro_batch});
      ASSERT_NE(it, end.end()) << "a step before what it needs";
      start = std::max(start, it->second);
    };
    if (step.pass == F && step.stage > 0) after(F, step.stage - 1);
    if (step.pass == B) after(F, step.stage);
    if (step.pass == B && step.stage + 1 < stages) after(B, step.stage + 1);
    const int64_t done = start + (step.pass == F ? 1 : 2);
    EXPECT_TRUE(end.emplace(std::tuple(step.pass, step.stage, step.micro_batch), done).second) << "twice";
    free[step.stage] = done;
    latest = std::max(latest, done);
  }
  return latest;
}

TEST(Schedule, OneForwardOneBackwardOfTwoStages) {
  EXPECT_EQ(one_forward_one_backward(2, 2),
            (Steps{{F, 0, 0}, {F, 1, 0}, {F, 0, 1}, {B, 1, 0}, {B, 0, 0}, {F, 1, 1}, {B, 1, 1}, {B, 0, 1}}));
  EXPECT_EQ(serial(2, 1), (Steps{{F, 0, 0}, {F, 1, 0}, {B, 1, 0}, {B, 0, 0}}));
}

TEST(Schedule, IsAsShortAsCanBe) {
  for (const int64_t stages : {1, 2, 3, 4, 7})
    for (const int64_t micros : {1, 2, 3, 8, 16}) {
      const Steps steps = one_forward_one_backward(stages, micros);
      EXPECT_EQ(steps.size(), static_cast<std::size_t>(2 * stages * micros));
      EXPECT_EQ(makespan(steps), 3 * (micros + stages - 1)) << stages << " stages, " << micros;
      EXPECT_EQ(makespan(serial(stages, micros)), 3 * micros * stages);
    }
}

/// Stage s of S never holds more than S - s micro-batches, and runs backward in their order.
TEST(Schedule, BoundsWhatAStageHolds) {
  for (const int64_t stages : {2, 3, 5}) {
    std::map<int64_t, int64_t> held, next;
    for (const ScheduleStep& step : one_forward_one_backward(stages, 9)) {
      if (step.pass == F) {
        EXPECT_LE(++held[step.stage], stages - step.stage);
      } else {
        --held[step.stage];
        EXPECT_EQ(step.micro_batch, next[step.stage]++);
      }
    }
  }
}

}  // namespace
}  // namespace trainer::split
