/// @file Numbers of a run in progress: the smoothed loss, seconds per step, and what memory the process takes.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace trainer::metrics {

/// Exponential moving average with the start-up bias removed (as Adam's moments): the first value counts fully.
/// Plain data, so that a checkpoint can hold it.
struct SmoothedMean {
  double smoothing = 0.98;  ///< weight of the past, in [0, 1)
  double sum = 0, weight = 0;

  /// Values that are not finite are not taken in.
  void add(double value);
  /// NaN before the first value.
  [[nodiscard]] double value() const;
};

/// Seconds per step and the time left. The first step of a process verifies what later ones rely on and takes several
/// times as long: it is no part of the rate once another is done, and nothing is foretold from it.
class Throughput {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Throughput(Clock::time_point start) : last_(start) {}
  /// A step ended.
  void step_done(Clock::time_point now);
  /// Smoothed seconds per step; NaN before the first step.
  [[nodiscard]] double seconds_per_step() const { return steps_ == 1 ? last_seconds_ : seconds_.value(); }
  /// Of the last step.
  [[nodiscard]] double last_seconds() const { return last_seconds_; }
  /// NaN before the second step.
  [[nodiscard]] double seconds_left(int64_t steps) const { return seconds_.value() * static_cast<double>(steps); }

 private:
  Clock::time_point last_;
  int64_t steps_ = 0;
  double last_seconds_ = 0;
  SmoothedMean seconds_{0.9};
};

/// Resident memory of this process in bytes, now and at its highest; 0 where the system does not tell.
struct MemoryUse {
  int64_t resident = 0, peak = 0;
};
MemoryUse memory_use();
/// The same from the text of /proc/self/status.
MemoryUse parse_memory_use(std::string_view status);

/// Memory that the machine, and the control groups that this process is in (a container's limit), can still give, in
/// bytes, page cache that they can drop included; 0 where the machine does not tell.
int64_t available_memory();
/// What is left below the limits of control groups, versions 1 and 2, from the text of /proc/self/cgroup and the tree
/// of groups; nothing where none has a limit.
std::optional<int64_t> available_in_groups(std::string_view membership, const std::filesystem::path& root);
/// The same from the text of /proc/meminfo.
int64_t parse_available_memory(std::string_view meminfo);

}  // namespace trainer::metrics
