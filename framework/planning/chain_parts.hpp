/// @file What each device has of the chain of blocks, as the planner's search takes it, and what the first step of a
/// run needs beyond later ones.
#pragma once

#include <planner/budget.hpp>
#include <planner/chain_cost.hpp>
#include <planning/dry_run.hpp>

#include <vector>

namespace trainer::planning {

/// For every block of the model the cost of every way to run it.
using BlockCosts = std::vector<std::vector<planner::BlockCost>>;

struct ChainPart {
  std::size_t device = 0;           ///< index of the dry device
  std::vector<std::size_t> blocks;  ///< indices of the model's
  int64_t under_way = 1;            ///< most micro-batches whose backward is still to come
};
std::vector<ChainPart> parts_of(const PlacementPlan& plan);

/// The ways of a part's blocks; what a block keeps is there once for each micro-batch under way. `first_step`: with
/// what verification and the search for dead values need.
std::vector<std::vector<planner::Way>> ways_of(const ChainPart& part, const BlockCosts& costs,
                                               const planner::WorkRates& rates, bool first_step);

/// What a device holds besides its blocks while they run: `step` of any ways tells.
int64_t outside(const ChainPart& part, const StepBytes& step);

/// At most what the blocks need in the first step, and what is held besides, by dry device; above weights, adapter and
/// states. Blocks run in `ways` (an index into each block's costs), of which `steps` is the dry step.
std::vector<int64_t> first_passes(const PlacementPlan& plan, const BlockCosts& costs,
                                  const std::vector<std::size_t>& ways, const std::vector<StepBytes>& steps);

}  // namespace trainer::planning
