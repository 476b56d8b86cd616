/// @file About 100 million parameters split over two simulated devices: for each of them what is held is exact, and the
/// peak within 5 %, the bound of one device (tests/memory/hundred_million_test.cpp).
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <planner/byte_counter.hpp>
#include <sim/sim.hpp>

#include "../memory/cells.hpp"

namespace trainer::placement {
namespace {

using memory::Cell;
using memory::Measured;

constexpr int kDevices = 2;
constexpr memory::Size kSize{.height = 8, .width = 8, .text = 21};  // of each of the micro-batches

std::vector<Cell> cells() {
  return {{"none", "", at::kFloat, false, 4},         {"none", "fp8", at::kBFloat16, false, 4, true},
          {"full", "", at::kBFloat16, false, 4},      {"full", "fp8", at::kBFloat16, false, 4},
          {"full", "fp8", at::kFloat, false, 4},      {"full+elide", "", at::kFloat, false, 4},
          {"attention", "fp8", at::kFloat, false, 4}, {"every_second_matmul", "fp8", at::kBFloat16, false, 4},
          {"matmul", "", at::kBFloat16, false, 4},    {"full", "", at::kFloat, true, 4}};
}

class HundredMillionSplit : public testing::TestWithParam<Cell> {
 protected:
  /// The counter first: the simulation then counts what kernels take from the host for a moment as the device's.
  void SetUp() override {
    planner::install_byte_counter();
    if (sim::devices() == 0) sim::init(kDevices);
    sim::set_count_temporaries(true);
  }
};

TEST_P(HundredMillionSplit, IsForetoldForEachDevice) {
  static const memory::Subject subject = memory::made_up();
  const std::array<at::Device, kDevices> devices{sim::device(0), sim::device(1)};
  const std::vector<Measured> real = memory::measure_real(subject, GetParam(), kSize, devices);
  const std::vector<Measured> dry = memory::measure_dry(subject, GetParam(), kSize, kDevices);
  for (std::size_t d = 0; d < kDevices; ++d) {
    SCOPED_TRACE("device " + std::to_string(d));
    EXPECT_EQ(dry[d].weights, real[d].weights);
    EXPECT_EQ(dry[d].trained, real[d].trained);
    EXPECT_EQ(dry[d].step.optimizer, real[d].step.optimizer);
    EXPECT_EQ(dry[d].step.ema, real[d].step.ema);
    EXPECT_EQ(dry[d].step.gradients, real[d].step.gradients);
    EXPECT_EQ(dry[d].step.kept, real[d].step.kept);
    const double ratio = static_cast<double>(dry[d].step.peak) / static_cast<double>(real[d].step.peak);
    const double first = static_cast<double>(real[d].first_peak) / static_cast<double>(dry[d].first_peak);
    std::printf("%s, device %zu: kept %ld, peak %ld, foretold %ld (%.4f); first step %.4f of what is allowed\n",
                text_of(GetParam()).c_str(), d, static_cast<long>(real[d].step.kept),
                static_cast<long>(real[d].step.peak), static_cast<long>(dry[d].step.peak), ratio, first);
    EXPECT_NEAR(ratio, 1.0, 0.05);
    EXPECT_LE(first, 1.05);
  }
}

INSTANTIATE_TEST_SUITE_P(Cells, HundredMillionSplit, testing::ValuesIn(cells()));

}  // namespace
}  // namespace trainer::placement
