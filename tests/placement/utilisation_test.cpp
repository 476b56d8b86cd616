/// @file Both devices at work, measured on the virtual clocks of simulated devices with the proportions of FLUX.2-dev:
/// 56 blocks of equal cost, 18.9 MB between the stages.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <sim/sim.hpp>

#include <cstdio>

#include "chain.hpp"
#include "devices.hpp"
#include "schedule.hpp"

namespace trainer::placement {
namespace {

constexpr ChainSizes kSizes{};

/// A block of FLUX.2-dev at 512 x 512 with 512 text tokens: 26 x 6144^2 x 1536 multiply-adds in 13 d^2 weights, 1.57
/// TFLOP with attention; at 200 TFLOP/s 7.8 ms. What crosses is [1536, 6144] in bf16; PCIe through host memory: 12
/// GB/s.
void set_flux2_dev_costs() {
  constexpr double kBlockSeconds = 1.57e12 / 200e12, kBoundarySeconds = 18.9e6 / 12e9;
  sim::Cost cost;
  cost.flops = 2.0 * kSizes.tokens * kSizes.width * kSizes.width / kBlockSeconds;
  cost.bytes = sim::kInfinite;
  cost.link = 4.0 * kSizes.tokens * kSizes.width / kBoundarySeconds;
  cost.link_latency = 2e-5;
  sim::set_cost(cost);
}

struct Measured {
  double seconds = 0, busy[2] = {};
  std::vector<std::string> races, reuses;
  std::vector<at::Tensor> result;
};
Measured measure(const std::vector<std::size_t>& starts, std::vector<ScheduleStep> schedule, int64_t micro_batches) {
  Measured measured;
  measured.result = run_step(kSizes, plan_of(kSizes, starts, std::move(schedule)), micro_batches, /*recompute=*/true,
                             &measured.seconds);
  for (int d = 0; d < 2; ++d) measured.busy[d] = sim::busy(d) / measured.seconds;
  measured.races = sim::take_races();
  measured.reuses = sim::take_early_reuses();
  return measured;
}

class Utilisation : public ::testing::Test {
 protected:
  void SetUp() override {
    init_devices();
    set_flux2_dev_costs();
    sim::set_timeline(true);
  }
  void TearDown() override { sim::set_timeline(false); }
};

TEST_F(Utilisation, TwoDevicesWorkAtOnce) {
  for (const auto& [micro_batches, at_least] :
       std::vector<std::pair<int64_t, double>>{{2, 1.3}, {4, 1.55}, {8, 1.75}}) {
    const Measured serial = measure({0, 28}, split::serial(2, micro_batches), micro_batches);
    const Measured piped = measure({0, 28}, split::one_forward_one_backward(2, micro_batches), micro_batches);
    const double speedup = serial.seconds / piped.seconds;
    std::printf("%lld micro-batches: serial %.3f s, 1f1b %.3f s, %.3f x, busy %.0f %% and %.0f %%\n",
                static_cast<long long>(micro_batches), serial.seconds, piped.seconds, speedup, 100 * piped.busy[0],
                100 * piped.busy[1]);
    EXPECT_GE(speedup, at_least) << micro_batches;
    EXPECT_LE(speedup, 2.0 * static_cast<double>(micro_batches) / static_cast<double>(micro_batches + 1) + 1e-3)
        << "faster than possible: the clocks are wrong";
    EXPECT_EQ(serial.races, std::vector<std::string>{});
    EXPECT_EQ(piped.races, std::vector<std::string>{}) << "a copy was used before it had arrived";
    EXPECT_EQ(piped.reuses, std::vector<std::string>{}) << "memory was given away while a copy read it";
    ASSERT_EQ(serial.result.size(), piped.result.size());
    for (std::size_t i = 0; i < serial.result.size(); ++i)
      EXPECT_TRUE(at::equal(serial.result[i], piped.result[i])) << i;
  }
}

/// The cut of the original two-GPU patch (half of the single blocks each): 32 against 24.
TEST_F(Utilisation, AnUnbalancedCutIsSlower) {
  const double even = measure({0, 28}, split::one_forward_one_backward(2, 8), 8).seconds;
  const double uneven = measure({0, 32}, split::one_forward_one_backward(2, 8), 8).seconds;
  EXPECT_GT(uneven / even, 1.05);
}

TEST_F(Utilisation, FourDevices) {
  constexpr int64_t kMicroBatches = 16;
  const Measured serial = measure({0, 14, 28, 42}, split::serial(4, kMicroBatches), kMicroBatches);
  const Measured piped = measure({0, 14, 28, 42}, split::one_forward_one_backward(4, kMicroBatches), kMicroBatches);
  const double speedup = serial.seconds / piped.seconds;
  std::printf("4 devices, 16 micro-batches: %.3f x\n", speedup);
  EXPECT_GE(speedup, 0.95 * 4 * 16 / 19);
  EXPECT_TRUE(piped.races.empty());
}

}  // namespace
}  // namespace trainer::placement
