/// @file While the schedule of a split FLUX.2 runs, the host waits for no device: with latents, noise and text from
/// host memory, as the cache gives them. A single blocking copy would end the overlap of the devices.
#include <gtest/gtest.h>

#include <planner/byte_counter.hpp>
#include <sim/sim.hpp>

#include "../memory/cells.hpp"

namespace trainer::placement {
namespace {

using memory::Cell;

constexpr memory::Size kInputSize{.height = 8, .width = 8, .text = 32};

std::vector<std::string> waits_of_second_step(const Cell& cell) {
  const std::vector<at::Device> devices{sim::device(0), sim::device(1)};
  std::vector<std::string> waits;
  int training_steps = 0;
  const auto before_step = [&](const ScheduleStep& step) {
    const bool first = step.pass == Pass::forward && step.stage == 0 && step.micro_batch == 0;
    const std::vector<std::string> more = sim::take_waits();
    training_steps += first ? 1 : 0;
    // In the first step recomputed blocks are compared with their forwards, which reads values.
    if (training_steps == 2 && !first) waits.insert(waits.end(), more.begin(), more.end());
  };
  memory::measure_real(memory::miniatures().front(), cell, kInputSize, devices, before_step);
  EXPECT_EQ(training_steps, 2);
  return waits;
}

TEST(Inputs, NoCopyHoldsUpTheHostWithinASchedule) {
  planner::install_byte_counter();  // before the devices: other tests of this program count by it
  if (sim::devices() == 0) sim::init(3);
  sim::set_timeline(true);
  for (const char* how : {"none", "full", "attention"})
    for (const char* packing : {"", "fp8"})
      EXPECT_EQ(waits_of_second_step({how, packing, at::kBFloat16, false, 4}), std::vector<std::string>{})
          << how << " " << packing;
  sim::set_timeline(false);
}

}  // namespace
}  // namespace trainer::placement
