/// @file `trainer plan RECIPE`: what a run will need, before it runs.
#include <base/units.hpp>
#include <nlohmann/json.hpp>
#include <train/commands/commands.hpp>
#include <train/planning/plan.hpp>
#include <train/planning/recipe_budget.hpp>

#include <cstdio>
#include <map>

namespace trainer::train {
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

/// Blocks of one type that are run and cost alike.
struct Group {
  const BlockPlan* block;
  int64_t count = 0;
};

std::vector<Group> grouped(const std::vector<BlockPlan>& blocks) {
  std::vector<Group> groups;
  for (const BlockPlan& block : blocks) {
    const auto same = [&](const Group& group) {
      const planner::BlockCost &a = group.block->cost, &b = block.cost;
      return group.block->type == block.type && a.kept == b.kept && a.forward_peak == b.forward_peak &&
             a.backward_peak == b.backward_peak && a.recomputed_flops == b.recomputed_flops;
    };
    if (groups.empty() || !same(groups.back())) groups.push_back({&block});
    ++groups.back().count;
  }
  return groups;
}

Json json_of(const DevicePlan& device) {
  return {{"device", device.device},
          {"weights", device.weights},
          {"adapter", device.adapter},
          {"gradients", device.step.gradients},
          {"optimizer", device.step.optimizer},
          {"ema", device.step.ema},
          {"kept_activations", device.step.kept},
          {"transient", device.step.transient()},
          {"total", device.total()}};
}

Json json_of(const Group& group) {
  const planner::BlockCost& cost = group.block->cost;
  return {{"type", group.block->type},
          {"count", group.count},
          {"first", group.block->name},
          {"recompute", group.block->options.recompute},
          {"kept", cost.kept},
          {"forward_peak", cost.forward_peak},
          {"backward_peak", cost.backward_peak},
          {"forward_flops", cost.forward_flops},
          {"recomputed_flops", cost.recomputed_flops},
          {"backward_flops", cost.backward_flops},
          {"kept_ops", cost.kept_ops}};
}

void print_json(const Plan& plan) {
  Json json{{"model", plan.model},     {"batch", plan.batch},     {"devices", Json::array()},
            {"phases", Json::array()}, {"blocks", Json::array()}, {"ram", plan.ram()}};
  for (const DevicePlan& device : plan.devices) json["devices"].push_back(json_of(device));
  for (const PhasePlan& phase : plan.phases)
    json["phases"].push_back({{"name", phase.name},
                              {"device", phase.device ? Json(*phase.device) : Json()},
                              {"host", phase.host},
                              {"note", phase.note}});
  for (const Group& group : grouped(plan.blocks)) json["blocks"].push_back(json_of(group));
  std::printf("%s\n", json.dump(2).c_str());
}

void print_device(const DevicePlan& device) {
  const std::pair<const char*, int64_t> rows[] = {{"weights", device.weights},
                                                  {"adapter", device.adapter},
                                                  {"optimizer", device.step.optimizer},
                                                  {"average (EMA)", device.step.ema},
                                                  {"gradients", device.step.gradients},
                                                  {"kept activations", device.step.kept},
                                                  {"transient", device.step.transient()},
                                                  {"total", device.total()}};
  std::printf("\n%s, training\n", device.device.c_str());
  for (const auto& [name, bytes] : rows)
    if (bytes != 0) std::printf("  %-18s %10s\n", name, text_of(bytes).c_str());
}

void print_text(const Plan& plan) {
  std::printf("%s\n%s\n", plan.model.c_str(), plan.batch.c_str());
  for (const DevicePlan& device : plan.devices) print_device(device);
  std::printf("\nblocks               kept each  backward peak  forward    recomputed  backward (TFLOP each)\n");
  for (const Group& group : grouped(plan.blocks)) {
    const planner::BlockCost& cost = group.block->cost;
    const std::string name = std::to_string(group.count) + " x " + group.block->type;
    std::printf("  %-18s %10s %14s %9.3f %11.3f %9.3f\n", name.c_str(), text_of(cost.kept).c_str(),
                text_of(cost.backward_peak).c_str(), cost.forward_flops / 1e12, cost.recomputed_flops / 1e12,
                cost.backward_flops / 1e12);
  }
  std::printf("\nphases, at most\n");
  for (const PhasePlan& phase : plan.phases)
    std::printf("  %-18s %10s  %s\n", phase.name.c_str(), phase.device ? text_of(*phase.device).c_str() : "not known",
                phase.note.c_str());
  std::printf("\nRAM, at most         %10s, the program itself included; weight files are mapped and not counted\n",
              text_of(plan.ram()).c_str());
}

/// With memory.budget: the strategies are what the planner makes of it.
void choose_strategies(Assembly& assembly, bool quiet) {
  if (assembly.recipe().memory.budget == 0) return;
  int64_t factor = 16;  // of an autoencoder that is not there yet
  try {
    factor = assembly.autoencoder()->spatial_factor();
  } catch (const std::exception&) {
  }
  const auto batch = foretold_shape(assembly, largest_of(assembly.recipe(), factor), factor);
  if (!batch)
    throw Error(ExitCode::unavailable, "the model \"" + assembly.recipe().model.kind +
                                           "\" does not declare the shapes of its inputs, so no batch is known before "
                                           "the cache is made");
  const BudgetPlan chosen = plan_budget(assembly, *batch);
  assembly.use_plan(chosen);
  if (!quiet) std::printf("%s\n", describe(chosen).c_str());
}

}  // namespace

int command_plan(const Request& request) {
  Assembly assembly(request, Assembly::Use::plan);
  choose_strategies(assembly, request.json);
  const Plan plan = make_plan(assembly);
  if (request.json)
    print_json(plan);
  else
    print_text(plan);
  return static_cast<int>(ExitCode::done);
}

}  // namespace trainer::train
