/// @file `trainer plan RECIPE`: what a run will need, before it runs.
#include <base/printable.hpp>
#include <base/units.hpp>
#include <engine/commands.hpp>
#include <nlohmann/json.hpp>
#include <planning/device_budgets.hpp>
#include <planning/plan.hpp>
#include <planning/recipe_budget.hpp>

#include <algorithm>
#include <cstdio>
#include <functional>

namespace trainer::engine {
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

/// Blocks of one type that are run and cost alike.
struct Group {
  const planning::BlockPlan* block;
  int64_t count = 0;
};

std::vector<Group> grouped(const std::vector<planning::BlockPlan>& blocks) {
  std::vector<Group> groups;
  for (const planning::BlockPlan& block : blocks) {
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

Json json_of(const planning::DevicePlan& device) {
  return {{"device", device.device},
          {"parts", device.parts},
          {"weights", device.weights},
          {"adapter", device.adapter},
          {"gradients", device.step.gradients},
          {"optimizer", device.step.optimizer},
          {"ema", device.step.ema},
          {"kept_activations", device.step.kept},
          {"transient", device.step.transient()},
          {"exchange", device.exchange},
          {"first_step", device.first_step()},
          {"data", device.data},
          {"total", device.total()},
          {"step_flops", device.flops},
          {"busy", device.busy},
          {"seconds", device.seconds ? Json(*device.seconds) : Json()}};
}

Json json_of(const planning::PhasePlan& phase, const planning::Plan& plan) {
  Json json{{"name", phase.name}, {"device", nullptr}, {"bytes", nullptr}, {"host", phase.host}, {"note", phase.note}};
  if (!phase.bytes) return json;
  int64_t most = 0;
  for (std::size_t i = 0; i < plan.memories.size(); ++i) {
    json["bytes"][plan.memories[i]] = (*phase.bytes)[i];
    if (i < plan.devices.size()) most = std::max(most, (*phase.bytes)[i]);
  }
  json["device"] = most;  // the fullest of those that train
  return json;
}

Json json_of(const planning::StepTime& time) {
  Json json{{"serial_over_step", time.makespan > 0 ? time.serial / time.makespan : 1},
            {"over_no_recomputation", time.plain}};
  json[time.seconds ? "seconds" : "flops"] = time.makespan;
  return json;
}

Json json_of(const planning::ValidationPlan& validation) {
  Json json{{"samples", nullptr},
            {"timesteps", validation.timesteps},
            {"times", validation.times},
            {"flops", validation.flops},
            {"seconds", nullptr}};
  if (validation.samples) json["samples"] = *validation.samples;
  if (validation.seconds) json["seconds"] = *validation.seconds;
  return json;
}

Json json_of(const planning::RankPlan& rank) {
  return {{"ranks", rank.ranks},
          {"micro_batch_size", rank.share.micro_batch_size},
          {"micro_batches", rank.share.micro_batches},
          {"reduced_bytes", rank.ranks > 1 ? rank.reduced : 0},
          {"sent_bytes", rank.sent()}};
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

void print_json(const planning::Plan& plan) {
  Json json{{"model", plan.model},        {"batch", plan.batch},
            {"devices", Json::array()},   {"phases", Json::array()},
            {"blocks", Json::array()},    {"step", json_of(plan.time)},
            {"rank", json_of(plan.rank)}, {"ram", plan.ram() ? Json(*plan.ram()) : Json()}};
  json["validation"] = plan.validation ? json_of(*plan.validation) : Json();
  for (const planning::DevicePlan& device : plan.devices) json["devices"].push_back(json_of(device));
  for (const planning::PhasePlan& phase : plan.phases) json["phases"].push_back(json_of(phase, plan));
  for (const Group& group : grouped(plan.blocks)) json["blocks"].push_back(json_of(group));
  std::printf("%s\n", printable_json(json).c_str());
}

/// One line of a table with a column for each device.
void print_row(const std::string& name, const std::vector<std::string>& cells, const std::string& note = "") {
  std::string line = "  " + name + std::string(name.size() < 19 ? 19 - name.size() : 1, ' ');
  for (const std::string& cell : cells) line += std::string(cell.size() < 11 ? 11 - cell.size() : 1, ' ') + cell;
  std::printf("%s%s%s\n", line.c_str(), note.empty() ? "" : "  ", note.c_str());
}

void print_devices(const planning::Plan& plan) {
  std::printf("\n");
  std::vector<std::string> names;
  for (const planning::DevicePlan& device : plan.devices) names.push_back(device.device);
  print_row("training", names);
  const auto row = [&](const char* name, const std::function<int64_t(const planning::DevicePlan&)>& bytes) {
    std::vector<std::string> cells;
    int64_t most = 0;
    for (const planning::DevicePlan& device : plan.devices) {
      cells.push_back(text_of(bytes(device)));
      most = std::max(most, bytes(device));
    }
    if (most > 0) print_row(name, cells);
  };
  row("weights", [](const planning::DevicePlan& device) { return device.weights; });
  row("adapter", [](const planning::DevicePlan& device) { return device.adapter; });
  row("optimizer", [](const planning::DevicePlan& device) { return device.step.optimizer; });
  row("average (EMA)", [](const planning::DevicePlan& device) { return device.step.ema; });
  row("gradients", [](const planning::DevicePlan& device) { return device.step.gradients; });
  row("kept activations", [](const planning::DevicePlan& device) { return device.step.kept; });
  row("transient", [](const planning::DevicePlan& device) { return device.step.transient(); });
  row("other processes", [](const planning::DevicePlan& device) { return device.exchange; });
  row("first step, more", [](const planning::DevicePlan& device) { return device.first_step(); });
  row("data", [](const planning::DevicePlan& device) { return device.data; });
  row("total", [](const planning::DevicePlan& device) { return device.total(); });
}

/// What each device computes, and how long a step takes.
void print_time(const planning::Plan& plan) {
  char text[160];
  std::printf("\n");
  for (const planning::DevicePlan& device : plan.devices) {
    std::snprintf(text, sizeof text, "%s a step, busy %.0f %%", format_flops(device.flops).c_str(), 100 * device.busy);
    if (device.seconds)
      std::snprintf(text, sizeof text, "%s a step in %.3g s, busy %.0f %%", format_flops(device.flops).c_str(),
                    *device.seconds, 100 * device.busy);
    std::printf("  %-18s %s: %s\n", device.device.c_str(), text, device.parts.c_str());
  }
  const planning::StepTime& time = plan.time;
  std::snprintf(text, sizeof text, "%.3g s", time.makespan);
  std::printf("a step, by its FLOPs: %s",
              (time.seconds ? text : "as long as " + format_flops(time.makespan) + " take").c_str());
  if (time.makespan > 0 && plan.devices.size() > 1)
    std::printf(", %.2f x as fast as one device after the other", time.serial / time.makespan);
  std::printf("; %.2f x the time without recomputation\n", time.plain);
  if (!time.seconds)
    std::printf("(--tflops N, what a device computes in a second in 1e12 FLOP, turns this into seconds)\n");
}

/// What several processes share, and what they send each other.
void print_ranks(const planning::RankPlan& rank) {
  if (rank.ranks == 1) return;
  std::printf(
      "one of %d processes: %lld of the %lld samples of a step; gradients of %s are made the mean of all, for "
      "which each sends and receives %s a step\n",
      rank.ranks, static_cast<long long>(rank.share.micro_batches * rank.share.micro_batch_size),
      static_cast<long long>(rank.share.all_micro_batches * rank.share.micro_batch_size), text_of(rank.reduced).c_str(),
      text_of(rank.sent()).c_str());
}

void print_validation(const planning::Plan& plan) {
  if (!plan.validation) return;
  const planning::ValidationPlan& validation = *plan.validation;
  const std::string samples = validation.samples ? std::to_string(*validation.samples) : "an unknown number of";
  char seconds[32] = "";
  if (validation.seconds) std::snprintf(seconds, sizeof seconds, " (%.3g s)", *validation.seconds);
  std::printf("a validation: %s samples at %lld timesteps each, %s a time%s; %lld times in the run\n", samples.c_str(),
              static_cast<long long>(validation.timesteps), format_flops(validation.flops).c_str(), seconds,
              static_cast<long long>(validation.times));
}

void print_blocks(const planning::Plan& plan) {
  std::printf("\nblocks               kept each  backward peak     forward  recomputed    backward (each)\n");
  for (const Group& group : grouped(plan.blocks)) {
    const planner::BlockCost& cost = group.block->cost;
    const std::string name = std::to_string(group.count) + " x " + group.block->type;
    std::printf("  %-18s %10s %14s %11s %11s %11s\n", name.c_str(), text_of(cost.kept).c_str(),
                text_of(cost.backward_peak).c_str(), format_flops(cost.forward_flops).c_str(),
                format_flops(cost.recomputed_flops).c_str(), format_flops(cost.backward_flops).c_str());
  }
}

void print_text(const planning::Plan& plan) {
  std::printf("%s\n%s\n", plan.model.c_str(), plan.batch.c_str());
  print_devices(plan);
  print_time(plan);
  print_validation(plan);
  print_ranks(plan.rank);
  print_blocks(plan);
  std::printf("\n");
  print_row("phases, at most", plan.memories);
  for (const planning::PhasePlan& phase : plan.phases) {
    std::vector<std::string> cells(plan.memories.size(), "not known");
    for (std::size_t i = 0; phase.bytes && i < cells.size(); ++i) cells[i] = text_of((*phase.bytes)[i]);
    print_row(phase.name, cells, phase.note);
  }
  const std::optional<int64_t> ram = plan.ram();
  std::printf("\n  %-18s %11s  %s\n", "RAM, at most", ram ? text_of(*ram).c_str() : "not known",
              ram ? "the program itself included; weight files are mapped and not counted" : "since a phase is not");
}

/// FLOPs a second of the devices from --tflops.
std::vector<double> speeds_of(const PlanRequest& request, std::size_t devices) {
  std::vector<double> speeds = request.tflops;
  if (speeds.size() > 1 && speeds.size() != devices)
    throw Error(ExitCode::usage, "--tflops: " + std::to_string(speeds.size()) + " numbers for " +
                                     std::to_string(devices) + " device(s); give one for all or one for each");
  for (double& speed : speeds) {
    if (!(speed > 0)) throw Error(ExitCode::usage, "--tflops: a device does more than 0 TFLOP a second");
    speed *= 1e12;
  }
  return speeds;
}

}  // namespace

int command_plan(const PlanRequest& request) {
  plugin::Loader plugins(request.plugins);
  assembly::Assembly assembly(recipe_of(request, plugins), plugins, request.ranks);
  if (const auto chosen = planning::choose_strategies(assembly); chosen && !request.json)
    std::printf("%s\n", planner::describe(*chosen).c_str());
  const planning::Plan plan =
      planning::make_plan(assembly, speeds_of(request, assembly.devices.training().size()), request.ranks);
  if (request.json)
    print_json(plan);
  else
    print_text(plan);
  std::fflush(stdout);  // what does not fit is seen in the table
  planning::require_device_budgets(assembly.recipe.placement, plan,
                                   planning::replan_of(assembly.recipe, plugins, request.ranks));
  return static_cast<int>(ExitCode::done);
}

}  // namespace trainer::engine
