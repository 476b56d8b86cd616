/// @file plan.json of a run: what memory.budget led to.
#pragma once

#include <assembly/assemble.hpp>
#include <planner/budget_plan.hpp>

#include <cstdint>
#include <filesystem>
#include <string>

namespace trainer::planning {

/// Writes it into the folder of the run and returns its text. Throws Error (io).
std::string store_plan(const std::filesystem::path& folder, const planner::BudgetPlan& plan);

/// With memory.budget: puts to use what a run of the recipe would choose now, which keeps of an earlier run only what
/// packs the weights in its checkpoint. Where the model declares no shapes, the plan that an earlier run stored.
/// `notes`: a line for the user is added. Throws Error: bad_recipe as plan_budget, unavailable when there is no plan,
/// bad_input for a damaged one.
void use_budget_of_run(assembly::Assembly& assembly, int64_t factor, std::string& notes);

}  // namespace trainer::planning
