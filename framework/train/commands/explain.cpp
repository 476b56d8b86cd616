/// @file `trainer explain memory.NAME RECIPE`: what a memory strategy does to the blocks of the recipe's model.
#include <nlohmann/json.hpp>
#include <train/commands/commands.hpp>
#include <train/planning/recipe_budget.hpp>

#include <algorithm>
#include <cstdio>

namespace trainer::train {
namespace {

void print_json(const std::vector<WayRow>& rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const WayRow& row : rows)
    list.push_back({{"block_type", row.type},
                    {"blocks", row.blocks},
                    {"run_with", row.way},
                    {"kept_bytes", row.cost.kept},
                    {"recomputed_flops", row.cost.recomputed_flops},
                    {"forward_flops", row.cost.forward_flops},
                    {"kept_operations", row.cost.kept_ops}});
  std::printf("%s\n", list.dump(2).c_str());
}

}  // namespace

int command_explain(const Request& request) {
  Assembly assembly(request);
  const recipe::Recipe& recipe = assembly.recipe();
  const int64_t factor = recipe.pictures() ? assembly.autoencoder()->spatial_factor() : 1;
  const auto batch = foretold_shape(assembly, largest_of(recipe, factor), factor);
  if (!batch)
    throw Error(ExitCode::unavailable, "what blocks keep is known when the captions are encoded: the model \"" +
                                           recipe.model.kind + "\" does not declare the shapes of its inputs");
  const auto& named = recipe.memory.strategies;
  if (std::find(named.begin(), named.end(), request.strategy) != named.end())
    static_cast<void>(strategy_rows(assembly, *batch));  // what the recipe says of it must have an effect
  const std::vector<WayRow> rows = candidate_rows(assembly, *batch, request.strategy);
  if (request.json)
    print_json(rows);
  else
    std::printf("in %s, a micro-batch of %lld:\n%s", request.recipe.c_str(), static_cast<long long>(batch->samples),
                table(rows).c_str());
  return static_cast<int>(ExitCode::done);
}

}  // namespace trainer::train
