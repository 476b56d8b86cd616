/// @file Bytes of tensors in the steps of a run, device by device: the highest of a step, the activations that it
/// keeps, and the first step, which verifies the recompute, apart from the later ones.
#pragma once

#include <execution/stages.hpp>
#include <planner/byte_counter.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

namespace trainer::run {

/// One device.
struct StepUse {
  int64_t step = 0;         ///< highest of the last step, with all that is held between steps
  int64_t kept = 0;         ///< of the last step: most that its forwards left when a backward began; without gradients
  int64_t first_step = 0;   ///< highest of this process's first step
  int64_t later_steps = 0;  ///< highest of the steps after it; 0 before there are any
  [[nodiscard]] int64_t highest() const { return std::max(first_step, later_steps); }
};

class StepMeter {
 public:
  /// `trained` borrowed. Begins the first step.
  StepMeter(std::vector<at::Device> devices, const PlacementPlan& plan, const std::vector<Parameter*>& trained);

  /// The next step begins now; what happened since `end_step` is none's.
  void begin_step();
  /// Before every entry of the schedule.
  void before(const ScheduleStep& entry);
  void end_step();

  [[nodiscard]] const std::vector<at::Device>& devices() const { return devices_; }
  /// In the order of `devices`.
  [[nodiscard]] const std::vector<StepUse>& uses() const { return uses_; }

 private:
  std::vector<at::Device> devices_;
  const std::vector<Parameter*>& trained_;
  std::vector<std::size_t> stages_;  ///< which device each runs on
  std::deque<planner::PeakMark> marks_;
  std::vector<int64_t> kept_;
  std::vector<StepUse> uses_;
  bool first_ = true;
};

}  // namespace trainer::run
