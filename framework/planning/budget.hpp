/// @file Answers `memory.budget`: measures what every way to run every block costs, on shapes alone, and has the
/// planner choose. Deterministic: the same recipe on the same kind of device gives the same plan.
#pragma once

#include <assembly/planned.hpp>
#include <planner/budget_plan.hpp>
#include <planning/dry_run.hpp>

#include <functional>

namespace trainer::planning {

/// One weight format to plan for; borrowed.
struct BudgetCase {
  const DryParts& parts;                ///< its memory stack is not used: blocks are run as `planned` says
  assembly::PlannedRecompute& planned;  ///< set to the chosen ways
  std::string format;                   ///< "none" or a candidate's label
  std::vector<int64_t> held;            ///< bytes of weights and adapter on each dry device
  at::DeviceType device = at::kCPU;     ///< the run's
};

/// The fastest plan that fits; nullopt: none does. Every device keeps the budget by itself: its blocks are chosen
/// without regard to the others', for as many micro-batches as the schedule has under way there. The first step
/// verifies every block and looks for dead values, which later steps do not; it is counted too. The plan is tried in a
/// dry step, and chosen again with less room where that needs more than the sum of the blocks says.
std::optional<planner::BudgetPlan> answer_budget(const BudgetCase& question, int64_t budget);

/// The smallest budget that has a plan.
int64_t smallest_budget(const BudgetCase& question);

/// Every block run in one way.
std::vector<BlockPlan> blocks_run(const DryParts& parts, assembly::PlannedRecompute& planned, std::size_t way);

/// The rows of `check` and `explain`: how blocks are run, one row for each block type and way.
std::vector<planner::WayRow> rows_of(const std::vector<BlockPlan>& blocks,
                                     const std::function<std::string(std::size_t)>& way);

}  // namespace trainer::planning
