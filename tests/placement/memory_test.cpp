/// @file Memory of each device of a split, foretold on dry devices, against simulated ones that count and limit theirs:
/// what is held is exact, the peak within 10 % on miniatures; and a device with the foretold bytes is enough.
#include <gtest/gtest.h>

#include <planner/byte_counter.hpp>
#include <sim/sim.hpp>

#include <cstdio>

#include "../memory/cells.hpp"

namespace trainer::placement {
namespace {

using memory::Cell;
using memory::Measured;

constexpr int kDevices = 3;
constexpr memory::Size kSize{.height = 8, .width = 8, .text = 32};

/// The counter first: the simulation then counts what kernels take from the host for a moment as the device's.
void init_devices() {
  planner::install_byte_counter();
  if (sim::devices() == 0) sim::init(kDevices);
  sim::set_count_temporaries(true);
}

std::vector<at::Device> devices(std::size_t count) {
  std::vector<at::Device> list;
  for (std::size_t i = 0; i < count; ++i) list.push_back(sim::device(static_cast<int>(i)));
  return list;
}

std::vector<Cell> cells() {
  std::vector<Cell> list;
  for (const char* how : {"none", "full", "attention", "every_second_matmul"})
    for (const char* packing : {"", "fp8"})
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) list.push_back({how, packing, dtype, false, 4});
  list.push_back({"none", "", at::kFloat, true, 4});
  list.push_back({"full", "", at::kFloat, true, 4, true});
  return list;
}

class SplitMemory : public testing::TestWithParam<Cell> {
 protected:
  void SetUp() override { init_devices(); }
};

int64_t resident(const Measured& device) {
  return device.weights + device.trained + device.step.optimizer + device.step.ema;
}

TEST_P(SplitMemory, IsForetoldForEachDevice) {
  const memory::Subject subject = memory::miniatures().front();
  for (const std::size_t count : {2U, 3U}) {
    const std::vector<Measured> real = memory::measure_real(subject, GetParam(), kSize, devices(count));
    const std::vector<Measured> dry = memory::measure_dry(subject, GetParam(), kSize, count);
    for (std::size_t d = 0; d < count; ++d) {
      SCOPED_TRACE("device " + std::to_string(d) + " of " + std::to_string(count));
      EXPECT_EQ(dry[d].weights, real[d].weights);
      EXPECT_EQ(dry[d].trained, real[d].trained);
      EXPECT_EQ(dry[d].step.optimizer, real[d].step.optimizer);
      EXPECT_EQ(dry[d].step.ema, real[d].step.ema);
      EXPECT_EQ(dry[d].step.gradients, real[d].step.gradients);
      EXPECT_EQ(dry[d].step.kept, real[d].step.kept);
      const double ratio = static_cast<double>(dry[d].step.peak) / static_cast<double>(real[d].step.peak);
      std::printf("%s, device %zu of %zu: kept %ld, peak %ld, foretold %ld (%.4f)\n", text_of(GetParam()).c_str(), d,
                  count, static_cast<long>(real[d].step.kept), static_cast<long>(real[d].step.peak),
                  static_cast<long>(dry[d].step.peak), ratio);
      EXPECT_NEAR(ratio, 1.0, 0.10);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cells, SplitMemory, testing::ValuesIn(cells()));

class SplitLimit : public testing::TestWithParam<Cell> {
 protected:
  void SetUp() override { init_devices(); }
};

/// The limit of each device in turn, the others without one.
TEST_P(SplitLimit, AFullDeviceSaysSoAndTheForetoldBytesAreEnough) {
  const memory::Subject subject = memory::miniatures().front();
  const Cell& cell = GetParam();
  const std::vector<Measured> dry = memory::measure_dry(subject, cell, kSize, 2);
  memory::measure_real(subject, cell, kSize, devices(2));  // what the process makes once is not the run's
  for (int d = 0; d < 2; ++d) {
    const auto i = static_cast<std::size_t>(d);
    const auto run = [&](double share, int64_t peak) {
      const double bytes = share * static_cast<double>(resident(dry[i]) + peak);
      sim::set_capacity(d, sim::stats(d).current + static_cast<int64_t>(bytes));
      memory::measure_real(subject, cell, kSize, devices(2));
      sim::set_capacity(d, 0);
    };
    EXPECT_THROW(run(0.85, dry[i].step.peak), c10::OutOfMemoryError) << d;
    sim::set_capacity(d, 0);
    EXPECT_NO_THROW(run(1.10, dry[i].first_peak)) << d;
    sim::set_capacity(d, 0);
  }
}

std::vector<Cell> limited_cells() {
  return {{"none", "", at::kFloat, false, 4},         {"none", "fp8", at::kBFloat16, false, 4, true},
          {"full", "fp8", at::kFloat, false, 4},      {"full", "", at::kBFloat16, false, 4},
          {"attention", "fp8", at::kFloat, false, 4}, {"every_second_matmul", "", at::kFloat, false, 4},
          {"full", "", at::kFloat, true, 4, true}};
}

INSTANTIATE_TEST_SUITE_P(Cells, SplitLimit, testing::ValuesIn(limited_cells()));

}  // namespace
}  // namespace trainer::placement
