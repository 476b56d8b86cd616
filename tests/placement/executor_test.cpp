/// @file The stage executor on plans that no shipped placement makes, and what it leaves on the devices.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <sim/sim.hpp>

#include "chain.hpp"
#include "devices.hpp"
#include "schedule.hpp"

namespace trainer::placement {
namespace {

constexpr ChainSizes kSizes{.tokens = 4, .width = 6, .blocks = 5};

void expect_same(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << what << ", tensor " << i;
}

class Executor : public ::testing::Test {
 protected:
  void SetUp() override { init_devices(); }
  static std::vector<at::Tensor> one_device(int64_t micro_batches, bool recompute) {
    return run_step(kSizes, plan_of(kSizes, {0}, split::serial(1, micro_batches)), micro_batches, recompute);
  }
};

TEST_F(Executor, EveryCutGivesTheSameGradients) {
  for (const bool recompute : {false, true}) {
    const std::vector<at::Tensor> expected = one_device(3, recompute);
    for (std::size_t a = 1; a < 5; ++a)
      expect_same(run_step(kSizes, plan_of(kSizes, {0, a}, split::one_forward_one_backward(2, 3)), 3, recompute),
                  expected, "cut before " + std::to_string(a));
    expect_same(run_step(kSizes, plan_of(kSizes, {0, 1, 2, 4}, split::one_forward_one_backward(4, 3)), 3, recompute),
                expected, "four devices");
  }
}

/// Prologue and epilogue on devices of their own, and a device that comes twice.
TEST_F(Executor, AnyPlanRuns) {
  const std::vector<at::Tensor> expected = one_device(2, false);
  PlacementPlan plan = plan_of(kSizes, {0}, split::one_forward_one_backward(5, 2));
  plan.prologue = sim::device(2);
  plan.blocks = {sim::device(0), sim::device(1), sim::device(1), sim::device(0), sim::device(0)};
  plan.epilogue = sim::device(3);
  ASSERT_EQ(execution::stages_of(plan).size(), 5U);
  expect_same(run_step(kSizes, plan, 2, false), expected, "five stages on four devices");
  PlacementPlan with_host = plan_of(kSizes, {0, 3}, split::serial(3, 2));
  with_host.prologue = at::kCPU;
  expect_same(run_step(kSizes, with_host, 2, true), one_device(2, true), "the prologue on the host");
}

TEST_F(Executor, AStepLeavesNothingOnTheDevices) {
  const int64_t before[2] = {sim::stats(0).current, sim::stats(1).current};
  run_step(kSizes, plan_of(kSizes, {0, 2}, split::one_forward_one_backward(2, 4)), 4, true);
  for (int d = 0; d < 2; ++d) EXPECT_EQ(sim::stats(d).current, before[d]) << d;
}

/// What crosses between stages is kept where it arrived: a recompute copies nothing again.
TEST_F(Executor, CopiesBetweenDevicesAreNotRepeatedInTheRecompute) {
  const PlacementPlan plan = plan_of(kSizes, {0, 2, 4}, split::one_forward_one_backward(3, 3));
  const auto copies = [&](bool recompute) {
    sim::set_timeline(true);
    run_step(kSizes, plan, 3, recompute);
    int64_t count = 0, operations = 0;
    for (const sim::Event& event : sim::take_log()) ++(event.is_copy() ? count : operations);
    sim::set_timeline(false);
    return std::pair(count, operations);
  };
  const auto [plain, plain_operations] = copies(false);
  const auto [again, operations] = copies(true);
  EXPECT_GT(plain, 0);
  EXPECT_EQ(again, plain);
  EXPECT_GT(operations, plain_operations) << "the blocks did run again";
}

/// The serial order holds the activations of one micro-batch, 1F1B on the first of two stages those of two.
TEST_F(Executor, TheScheduleBoundsWhatIsHeld) {
  constexpr ChainSizes kWide{.tokens = 512, .width = 8, .blocks = 8};
  const auto peak = [&](std::vector<ScheduleStep> schedule) {
    const PlacementPlan plan = plan_of(kWide, {0, 4}, std::move(schedule));
    sim::reset_peak(0);
    run_step(kWide, plan, 6, false);
    return sim::stats(0).peak;
  };
  const int64_t serial = peak(split::serial(2, 6)), piped = peak(split::one_forward_one_backward(2, 6));
  EXPECT_LT(piped, 2.1 * static_cast<double>(serial));
  EXPECT_GT(piped, 1.5 * static_cast<double>(serial));
}

}  // namespace
}  // namespace trainer::placement
