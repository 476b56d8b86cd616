/// @file What a run plans before it loads its model: placement.budgets and memory.budget. Collective: the writer plans,
/// and all ranks use its plan.
#pragma once

#include <distributed/group.hpp>
#include <planning/recipe_budget.hpp>
#include <preparation/cache_phase.hpp>

#include <filesystem>
#include <vector>

namespace trainer::planning {

/// With placement.budgets: refuses what `trainer plan` refuses, before anything is encoded. Throws as
/// require_device_budgets (device_budgets.hpp).
void require_budgets(assembly::Assembly& assembly, distributed::Group& ranks);

/// The plan for memory.budget, for the devices and the number of ranks of now: how a block is run changes no result.
/// What packs the weights does, so a run keeps the format of the newest of the checkpoints `resumable`. Writes
/// RUN/plan.json. Throws as plan_budget.
planner::BudgetPlan plan_for_run(assembly::Assembly& assembly, const preparation::Prepared& data,
                                 const std::vector<std::filesystem::path>& resumable, distributed::Group& ranks);

}  // namespace trainer::planning
