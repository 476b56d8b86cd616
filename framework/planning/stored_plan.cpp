#include <base/files.hpp>
#include <checkpoint/committed.hpp>
#include <checkpoint/recovery.hpp>
#include <planning/recipe_budget.hpp>
#include <planning/stored_plan.hpp>

namespace trainer::planning {
namespace {

constexpr auto kPlanFile = "plan.json";

/// What an earlier run in run.output was planned with.
struct StoredPlan {
  std::string file;
  planner::BudgetPlan plan;
};

/// nullopt and `damage`, why not, for a file that holds none.
std::optional<StoredPlan> stored_plan(const recipe::Recipe& recipe, std::optional<Error>& damage) {
  constexpr std::size_t kPlanLimit = 1 << 24;
  const std::filesystem::path file = std::filesystem::path(recipe.run.output) / kPlanFile;
  if (!std::filesystem::exists(file)) return std::nullopt;
  try {
    return StoredPlan{file.string(), planner::parse_plan(read_file(file, kPlanLimit, "plan"), file.string())};
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::bad_input) throw;
    damage = error;
    return std::nullopt;
  }
}

/// The stored plan itself, where nothing else can be proven: it has to be one for this budget and this model.
planner::BudgetPlan plan_as_stored(assembly::Assembly& assembly, const StoredPlan& stored) {
  std::vector<std::string> names;
  const assembly::LoadedModel outline = assembly.models.load(assembly.strategies.stack(), {assembly::Weights::none});
  for (const Block* block : outline.model->blocks()) names.push_back(block->info().name);
  planner::require_blocks(stored.plan, names, stored.file);
  return stored.plan;
}

}  // namespace

std::string store_plan(const std::filesystem::path& folder, const planner::BudgetPlan& plan) {
  std::string text = planner::to_json(plan);
  write_file_atomically(folder / kPlanFile, text);
  return text;
}

void use_budget_of_run(assembly::Assembly& assembly, int64_t factor, std::string& notes) {
  const recipe::Recipe& recipe = assembly.recipe;
  if (recipe.memory.budget == 0) return;
  std::optional<Error> damage;
  const std::optional<StoredPlan> stored = stored_plan(recipe, damage);
  if (const auto batch = foretold_shape(assembly, largest_of(recipe, factor), factor)) {
    const auto checkpoints =
        checkpoint::newest_first(checkpoint::roots_of(recipe.run.output, recipe.checkpoint.fallback));
    const planner::BudgetPlan plan = plan_budget(assembly, *batch, format_of_checkpoint(assembly, checkpoints));
    if (stored && planner::same_ways(stored->plan, plan))
      notes += "the plan of the run in " + recipe.run.output + " is proven\n";
    else if (stored)
      notes += "the run in " + recipe.run.output + " had another plan (" + stored->file +
               "); proven is the one that this recipe gets now\n";
    else if (damage)
      notes += std::string(damage->what()) + "; proven is the plan that this recipe gets now\n";
    return assembly.strategies.use(plan);
  }
  if (damage) throw *damage;
  if (!stored || stored->plan.budget != recipe.memory.budget)
    throw Error(ExitCode::unavailable,
                "memory.budget: the model \"" + recipe.model.kind +
                    "\" does not declare the shapes of its inputs, so there is no plan before the "
                    "run made one; prove the recipe after the first steps of the run");
  notes += "the plan in " + stored->file + " is proven as it is: the model \"" + recipe.model.kind +
           "\" does not declare the shapes of its inputs, so none is made for the recipe of now\n";
  assembly.strategies.use(plan_as_stored(assembly, *stored));
  try {
    assembly.strategies.stack();
  } catch (const Error& error) {
    throw error.context(stored->file + " (delete it, and the run makes a new plan)");
  }
}

}  // namespace trainer::planning
