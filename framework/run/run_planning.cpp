/// @file What a run plans before it loads its model: memory.budget and placement.budgets.
#include <base/log.hpp>
#include <checkpoint/committed.hpp>
#include <checkpoint/recovery.hpp>
#include <identity/same_run.hpp>
#include <planning/device_budgets.hpp>
#include <planning/recipe_budget.hpp>
#include <planning/stored_plan.hpp>
#include <run/run.hpp>

#include <exception>

namespace trainer::run {
void Run::require_budgets() {
  if (!planning::limits_devices(recipe_.placement)) return;
  const distributed::LongWork work(ranks_, "planning", distributed::LongWork::When::all_live);
  if (ranks_.writer()) {
    const planning::Replan replan = planning::replan_of(recipe_, assembly_.components.plugins(), ranks_.size());
    std::optional<planning::Plan> plan;
    try {
      plan = replan({});
    } catch (const std::exception& error) {  // what is wrong with it is told where the run meets it
      log_warning(std::string("placement.budgets hold for the weights alone, what else is needed is not known before a "
                              "run: ") +
                  error.what());
    }
    if (plan) planning::require_device_budgets(recipe_.placement, *plan, replan);
  }
  ranks_.barrier();
}

void Run::plan_memory() {
  if (recipe_.memory.budget == 0) return;
  const planner::BudgetPlan plan = planner::parse_plan(ranks_.from_writer(ranks_.writer() ? plan_text() : ""), "plan");
  assembly_.strategies.use(plan);
  console_.clear();
  log_info(describe(plan));
}

std::string Run::format_of_checkpoint() {
  if (identity::names_checkpoint(request_.resume)) return planning::format_of_checkpoint(assembly_, {request_.resume});
  return planning::format_of_checkpoint(
      assembly_, checkpoint::newest_first(checkpoint::roots_of(folder_, recipe_.checkpoint.fallback)));
}

std::string Run::plan_text() {
  // Planned anew for the budget, the devices and the number of ranks of now: how a block is run changes no result. What
  // packs the weights does, and stays.
  const planning::BatchShape batch = planning::batch_shape(
      *prepared_.batches, planning::largest_of(recipe_, prepared_.samples.factor), prepared_.samples.factor);
  return planning::store_plan(folder_, planning::plan_budget(assembly_, batch, format_of_checkpoint()));
}

}  // namespace trainer::run
