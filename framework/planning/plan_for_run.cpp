#include <base/log.hpp>
#include <planning/device_budgets.hpp>
#include <planning/plan_for_run.hpp>
#include <planning/stored_plan.hpp>

#include <exception>
#include <optional>

namespace trainer::planning {
namespace {

std::string plan_text(assembly::Assembly& assembly, const preparation::Prepared& data,
                      const std::vector<std::filesystem::path>& resumable) {
  const int64_t factor = data.samples.factor;
  const BatchShape batch = batch_shape(*data.batches, largest_of(assembly.recipe, factor), factor);
  return store_plan(assembly.recipe.run.output,
                    plan_budget(assembly, batch, format_of_checkpoint(assembly, resumable)));
}

}  // namespace

void require_budgets(assembly::Assembly& assembly, distributed::Group& ranks) {
  const recipe::Placement& placement = assembly.recipe.placement;
  if (!limits_devices(placement)) return;
  const distributed::LongWork work(ranks, "planning", distributed::LongWork::When::all_live);
  if (ranks.writer()) {
    const Replan replan = replan_of(assembly.recipe, assembly.components.plugins(), ranks.size());
    std::optional<Plan> plan;
    try {
      plan = replan({});
    } catch (const std::exception& error) {  // the run itself meets what is wrong, and says it there
      log_warning(std::string("placement.budgets hold for the weights alone, what else is needed is not known before a "
                              "run: ") +
                  error.what());
    }
    if (plan) require_device_budgets(placement, *plan, replan);
  }
  ranks.barrier();
}

planner::BudgetPlan plan_for_run(assembly::Assembly& assembly, const preparation::Prepared& data,
                                 const std::vector<std::filesystem::path>& resumable, distributed::Group& ranks) {
  return planner::parse_plan(ranks.from_writer(ranks.writer() ? plan_text(assembly, data, resumable) : ""), "plan");
}

}  // namespace trainer::planning
