/// @file The order in which stages and micro-batches run.
#pragma once

#include <trainer/sdk/placement.hpp>

#include <cstdint>
#include <vector>

namespace trainer::split {

/// One micro-batch after the other through all stages and back.
std::vector<ScheduleStep> serial(int64_t stages, int64_t micro_batches);

/// One forward, one backward (PipeDream-Flush, Narayanan et al. 2021): stage s of S begins with up to S - s forwards,
/// then a backward and a forward take turns, so that it holds at most S - s micro-batches. Times when m micro-batches
/// cost t on each of S equal stages: (m + S - 1) t, against m S t of the serial order.
std::vector<ScheduleStep> one_forward_one_backward(int64_t stages, int64_t micro_batches);

}  // namespace trainer::split
