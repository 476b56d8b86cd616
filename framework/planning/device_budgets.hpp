/// @file The limits of placement.budgets against all that training takes on each device. A placement plugin sees
/// weights alone; what a step needs besides is known when it is planned.
#pragma once

#include <planning/plan.hpp>

#include <functional>
#include <string>
#include <vector>

namespace trainer::planning {

/// The recipe limits devices.
bool limits_devices(const recipe::Placement& placement);

/// The plan of the same recipe with these bytes as placement.budgets; with none, of the recipe as it is. May throw what
/// making a plan throws.
using Replan = std::function<Plan(const std::vector<int64_t>& budgets)>;

/// Returns when every device of `plan` keeps to its budget, or the recipe gives none. Else throws Error (bad_recipe,
/// BUDGET_SHORT) with what each device takes and may take, and with cuts that keep to the budgets where there are any:
/// they are looked for with `replan`, weights being granted what the rest leaves of each budget.
void require_device_budgets(const recipe::Placement& placement, const Plan& plan, const Replan& replan);

/// How `check`, `plan` and `run` foretell a recipe: for the first of `ranks` processes, with what memory.budget
/// chooses. Borrows both.
Replan replan_of(const recipe::Recipe& recipe, plugin::Loader& plugins, int ranks);

}  // namespace trainer::planning
