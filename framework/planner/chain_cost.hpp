/// @file Measured costs of blocks as the search for a plan takes them.
#pragma once

#include <planner/block_cost.hpp>
#include <planner/budget.hpp>

#include <c10/core/DeviceType.h>

#include <vector>

namespace trainer::planner {

/// What moving bytes costs beside matrix products, in floating-point operations a byte. Fixed round numbers for each
/// kind of device, so that plans do not depend on a measurement.
struct WorkRates {
  int64_t again = 0;      ///< how much a device computes while it writes and reads back a byte that is made again
  int64_t expansion = 0;  ///< and while it writes a byte of a weight that is expanded from its packed form
};
WorkRates work_rates(c10::DeviceType device);

/// FLOPs that expanding a block's packed weights is worth: for the forward, the backward, and as much of them as the
/// recompute runs again.
double expansion_work(const BlockCost& cost, const WorkRates& rates);

/// All that a block does besides what it would do plainly with weights that need no expansion: FLOPs of recomputed
/// heavy operations, bytes that are not kept but made again, expansions. `plain`: the same block run plainly.
int64_t work_of(const BlockCost& plain, const BlockCost& cost, const WorkRates& rates);

/// For every block its ways, the first of them the plain run, from what was measured of each. Bytes: gradients of later
/// blocks are there when a block's backward runs. With `first_step` the peaks are those of a step in which every
/// recomputed block is verified and its dead values are looked for.
std::vector<std::vector<Way>> ways_of(const std::vector<std::vector<BlockCost>>& costs, const WorkRates& rates,
                                      bool first_step);

}  // namespace trainer::planner
