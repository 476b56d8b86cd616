/// @file Measured costs of blocks as the search for a plan takes them.
#pragma once

#include <planner/block_cost.hpp>
#include <planner/budget.hpp>

#include <c10/core/DeviceType.h>

#include <vector>

namespace trainer::planner {

/// How much arithmetic a device does while it writes and reads back one byte: what making a value again costs beside
/// matrix products. A fixed round number for each kind of device, so that plans do not depend on a measurement.
int64_t flops_per_byte(c10::DeviceType device);

/// For every block its ways, the first of them the plain run, from what was measured of each.
///
/// Bytes: gradients of later blocks are there when a block's backward runs. With `first_step` also what that step alone
/// needs: every block is verified, with a plain graph of it beside what it keeps, and its dead values are looked for,
/// with copies of its outputs and gradients. Work: the FLOPs of recomputed heavy operations, and `flops_per_byte` for
/// every byte that is not kept but made again.
std::vector<std::vector<Way>> ways_of(const std::vector<std::vector<BlockCost>>& costs, int64_t flops_per_byte,
                                      bool first_step);

}  // namespace trainer::planner
