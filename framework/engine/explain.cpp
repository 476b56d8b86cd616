/// @file `trainer explain memory.NAME RECIPE`: what a memory strategy does to the blocks of the recipe's model.
#include <base/printable.hpp>
#include <base/units.hpp>
#include <nlohmann/json.hpp>
#include <engine/commands.hpp>
#include <planning/recipe_budget.hpp>

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

/// The recipe with these strategies and nothing else of [memory], on shapes.
assembly::LoadedModel dry_with(const assembly::Request& request, const std::string& strategies) {
  assembly::Request changed = request;
  changed.overrides.push_back("memory.strategies=" + strategies);
  assembly::Assembly assembly(changed, assembly::Assembly::Use::plan);
  return assembly.load_model(assembly::ModelUse::dry);
}

/// By block type what a strategy makes of the weights; nothing where it packs none.
std::map<std::string, WeightRow> weight_rows(const assembly::Request& request) {
  std::map<std::string, WeightRow> rows;
  const assembly::LoadedModel packed = dry_with(request, "[\"" + request.strategy + "\"]");
  if (packed.memory.format() == nullptr) return rows;
  const assembly::LoadedModel plain = dry_with(request, "[]");
  for (const Block* block : packed.model->blocks()) ++rows[block->info().type].blocks;
  for (const Block* block : packed.model->blocks()) rows[block->info().type].packed = weight_bytes(*block);
  for (const Block* block : plain.model->blocks()) rows[block->info().type].plain = weight_bytes(*block);
  return rows;
}

/// What changes no block's run: the bytes of its weights, or where to look.
void print_other(const assembly::Request& request) {
  const std::map<std::string, WeightRow> rows = weight_rows(request);
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  if (!request.json)
    std::printf("in %s it chooses nothing of what a block keeps or recomputes%s\n", request.recipe.c_str(),
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

int command_explain(const assembly::Request& request) {
  assembly::Assembly assembly(request);
  const recipe::Recipe& recipe = assembly.recipe();
  const int64_t factor = recipe.pictures() ? assembly.spatial_factor() : 1;
  const auto batch = planning::foretold_shape(assembly, planning::largest_of(recipe, factor), factor);
  if (!batch)
    throw Error(ExitCode::unavailable, "what blocks keep is known when the captions are encoded: the model \"" +
                                           recipe.model.kind + "\" does not declare the shapes of its inputs");
  const auto& named = recipe.memory.strategies;
  if (std::find(named.begin(), named.end(), request.strategy) != named.end())
    static_cast<void>(planning::strategy_rows(assembly, *batch));  // what the recipe says of it must have an effect
  const std::vector<planner::WayRow> rows = planning::candidate_rows(assembly, *batch, request.strategy);
  if (std::all_of(rows.begin(), rows.end(), [](const planner::WayRow& row) { return row.way == "none"; }))
    print_other(request);
  else if (request.json)
    print_json(rows);
  else
    std::printf("in %s, a micro-batch of %lld:\n%s", request.recipe.c_str(), static_cast<long long>(batch->samples),
                planner::table(rows).c_str());
  return static_cast<int>(ExitCode::done);
}

}  // namespace trainer::engine
