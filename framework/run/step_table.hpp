/// @file Where the time of a training step goes, from what a profiler saw. No LibTorch.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace trainer::run {

/// What one entry of a profile is.
enum class SpanKind {
  mark,    ///< a part of a step (profile/mark.hpp)
  node,    ///< a node of the autograd graph in backward
  op,      ///< an operator on the host: on the CPU the work itself, on a GPU its launch
  kernel,  ///< work of a device
  copy     ///< a copy that a device makes
};

struct Span {
  std::string name;
  SpanKind kind = SpanKind::op;
  int64_t begin = 0, end = 0;  ///< nanoseconds
  uint64_t thread = 0;         ///< of the host, or the stream of a device
  uint64_t id = 0;             ///< of an op; of a kernel and a copy: the op that launched it, 0 if unknown
};

/// In the order in which they are shown.
enum class StepPart { data, forward, recompute, backward, copies, ranks, optimizer, host };
inline constexpr std::size_t kStepParts = 8;
/// "forward", "copies and casts", ...
std::string describe(StepPart part);

struct StepTable {
  int64_t steps = 0;
  double step_seconds = 0;                          ///< of one step, on average; so are all that follow
  std::array<double, kStepParts> host_seconds{};    ///< they add up to step_seconds
  std::array<double, kStepParts> device_seconds{};  ///< all 0 without a device; kernels that overlap count each
  double device_busy_seconds = 0;                   ///< with at least one kernel or copy running
  double calls = 0;  ///< of operators by the step itself, not by other operators: the host's work, whatever it costs
  double reads = 0;  ///< of a number from a tensor, for which the host waits when a device makes it
  struct Row {
    std::string name;
    StepPart part = StepPart::forward;
    double seconds = 0;
    double calls = 0;
  };
  std::vector<Row> operators;  ///< the longest by their own time, children left out, on the device if there is one

  [[nodiscard]] bool has_device() const { return device_busy_seconds > 0; }
};

/// Of all steps that lie in `spans`. An operator belongs to the innermost part around it; in backward, what runs inside
/// of the recompute engine's node and in no node below it is recompute. Copies and casts count as such in every part
/// but data and optimiser. `host` is time of a step in which no operator runs, and operators that only make or view
/// tensors.
StepTable step_table(std::vector<Span> spans);

/// For a terminal, several lines without one at the end.
std::string describe(const StepTable& table);

}  // namespace trainer::run
