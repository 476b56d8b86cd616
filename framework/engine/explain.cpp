/// @file `trainer explain memory.NAME RECIPE`: what a memory strategy does to the blocks of the recipe's model.
#include <base/printable.hpp>
#include <base/units.hpp>
#include <engine/commands.hpp>
#include <nlohmann/json.hpp>
#include <planning/recipe_budget.hpp>
#include <recipe/default_options.hpp>

#include <algorithm>
#include <cstdio>
#include <map>

namespace trainer::engine {
namespace {

void print_json(const std::vector<planner::WayRow>& rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const planner::WayRow& row : rows)
    list.push_back({{"block_type", row.type},
                    {"blocks", row.blocks},
                    {"run_with", row.way},
                    {"kept_bytes", row.cost.kept},
                    {"recomputed_flops", row.cost.recomputed_flops},
                    {"forward_flops", row.cost.forward_flops},
                    {"kept_operations", row.cost.kept_ops},
                    {"unread_operations", row.cost.unread_ops}});
  std::printf("%s\n", printable_json(list).c_str());
}

/// The frozen weights of the linear layers of one type of block.
struct WeightRow {
  int64_t blocks = 0, plain = 0, packed = 0;  ///< bytes are those of the last block
};

int64_t weight_bytes(const Block& block) {
  int64_t bytes = 0;
  for (const Linear& linear : block.info().linears)
    if (const auto& frozen = linear.state().frozen) bytes += frozen->bytes();
  return bytes;
}

/// The model of the recipe with this memory strategy alone, or with none where it is empty, on shapes.
assembly::LoadedModel dry_with(recipe::Recipe recipe, plugin::Loader& plugins, const std::string& strategy) {
  recipe::Memory& memory = recipe.memory;
  memory.budget = 0;
  memory.strategies.clear();
  std::erase_if(memory.components, [&](const recipe::Component& component) { return component.kind != strategy; });
  if (!strategy.empty()) {
    memory.strategies.push_back(strategy);
    if (memory.components.empty()) {
      recipe::Component& component = memory.components.emplace_back();
      component.kind = strategy;
      component.options = recipe::default_options(plugin::schema_of(plugins.found(), "memory", strategy));
    }
  }
  assembly::Assembly assembly(std::move(recipe), plugins);
  const auto placement = assembly.components.placement();
  return assembly.models.load(assembly.strategies.stack(), {assembly::Weights::shapes, placement.get()});
}

/// By block type what a strategy makes of the weights; nothing where it packs none.
std::map<std::string, WeightRow> weight_rows(assembly::Assembly& assembly, const std::string& strategy) {
  std::map<std::string, WeightRow> rows;
  plugin::Loader& plugins = assembly.components.plugins();
  const assembly::LoadedModel packed = dry_with(assembly.recipe, plugins, strategy);
  if (packed.memory.format() == nullptr) return rows;
  const assembly::LoadedModel plain = dry_with(assembly.recipe, plugins, "");
  for (const Block* block : packed.model->blocks()) ++rows[block->info().type].blocks;
  for (const Block* block : packed.model->blocks()) rows[block->info().type].packed = weight_bytes(*block);
  for (const Block* block : plain.model->blocks()) rows[block->info().type].plain = weight_bytes(*block);
  return rows;
}

/// What changes no block's run: the bytes of its weights, or where to look.
void print_other(const ExplainRequest& request, assembly::Assembly& assembly) {
  const std::map<std::string, WeightRow> rows = weight_rows(assembly, request.strategy);
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  if (!request.json)
    std::printf("in %s it chooses nothing of what a block keeps or recomputes%s\n", request.recipe.file.c_str(),
                rows.empty() ? "; `trainer plan` with it in memory.strategies shows what it does to the bytes"
                             : "; the frozen weights of the linear layers of one block:");
  for (const auto& [type, row] : rows) {
    list.push_back(
        {{"block_type", type}, {"blocks", row.blocks}, {"weight_bytes", row.plain}, {"packed_bytes", row.packed}});
    if (!request.json)
      std::printf("  %lld x %-16s %s, packed %s\n", static_cast<long long>(row.blocks), type.c_str(),
                  format_bytes(static_cast<double>(row.plain)).c_str(),
                  format_bytes(static_cast<double>(row.packed)).c_str());
  }
  if (request.json) std::printf("%s\n", printable_json(list).c_str());
}

}  // namespace

int command_explain(const ExplainRequest& request) {
  plugin::Loader plugins(request.plugins);
  assembly::Assembly assembly(recipe_of(request, plugins), plugins, request.libraries);
  const recipe::Recipe& recipe = assembly.recipe;
  const int64_t factor = recipe.pictures() ? assembly.encoders.spatial_factor() : 1;
  const auto batch = planning::foretold_shape(assembly, planning::largest_of(recipe, factor), factor);
  if (!batch)
    throw Error(ExitCode::unavailable, "what blocks keep is known when the captions are encoded: the model \"" +
                                           recipe.model.kind + "\" does not declare the shapes of its inputs");
  const auto& named = recipe.memory.strategies;
  if (std::find(named.begin(), named.end(), request.strategy) != named.end())
    static_cast<void>(planning::strategy_rows(assembly, *batch));  // what the recipe says of it must have an effect
  const std::vector<planner::WayRow> rows = planning::candidate_rows(assembly, *batch, request.strategy);
  if (std::all_of(rows.begin(), rows.end(), [](const planner::WayRow& row) { return row.way == "none"; }))
    print_other(request, assembly);
  else if (request.json)
    print_json(rows);
  else
    std::printf("in %s, a micro-batch of %lld:\n%s", request.recipe.file.c_str(),
                static_cast<long long>(batch->samples), planner::table(rows).c_str());
  return static_cast<int>(ExitCode::done);
}

}  // namespace trainer::engine
