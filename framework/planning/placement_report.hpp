/// @file What a plan means before anything runs: the parts and weights of each device, and how busy its schedule keeps
/// it. From headers alone; for `trainer check` and `trainer plan`.
#pragma once

#include <execution/stages.hpp>

#include <map>
#include <span>
#include <string>
#include <vector>

namespace trainer::planning {

/// A schedule whose every device works in its order and whose every step waits for what it needs; copies are free.
struct Timeline {
  double makespan = 0, serial = 0;        ///< when the last step ends; the same work one step after the other
  std::map<std::string, double> working;  ///< by device
  /// Share of the makespan in which the device works.
  [[nodiscard]] double busy(at::Device device) const {
    const auto it = working.find(device.str());
    return it == working.end() || makespan <= 0 ? 0 : it->second / makespan;
  }
};

/// `seconds` (or any other unit) that each step of the plan's schedule takes, in its order.
Timeline timeline_of(const PlacementPlan& plan, std::span<const double> seconds);

struct DeviceShare {
  at::Device device = at::kCPU;
  std::string parts;         ///< "prologue, double.0 to single.19"
  int64_t weight_bytes = 0;  ///< without adapter
  double flops = 0;          ///< of one forward per token
  double busy = 0;           ///< share of the step's time in which it computes, copies taken as free
};

struct PlacementReport {
  std::vector<DeviceShare> devices;  ///< in the order of their first stage
  /// Length of the schedule in flops of one forward per token, a backward with its recompute counting as `backward`
  /// forwards, and of the same work one stage after the other.
  double makespan = 0, serial = 0;
  /// "cuda:0 prologue, double.0 to single.19, 18.4 GB, busy 80 %; cuda:1 ...; 1.60 x as fast as one after the other".
  [[nodiscard]] std::string text() const;
};

/// `request` as the plan was made from it. `backward`: 2 with recomputation and frozen weights (a recompute and a
/// backward of the same size each).
PlacementReport report_placement(const PlacementPlan& plan, const PlacementRequest& request, double backward = 2);

}  // namespace trainer::planning
