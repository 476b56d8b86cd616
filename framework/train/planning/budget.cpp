#include <planner/chain_cost.hpp>
#include <train/placement/stages.hpp>
#include <train/planning/budget.hpp>

#include <algorithm>

namespace trainer::train {
namespace {

/// Has a stack ask a policy that lives elsewhere.
class Borrowed final : public MemoryStrategy {
 public:
  explicit Borrowed(RecomputePolicy& policy) : policy_(policy) {}
  RecomputePolicy* recompute_policy() override { return &policy_; }

 private:
  RecomputePolicy& policy_;
};

/// Calls `run` with parts whose blocks are run in these ways. The stack is a new one: it remembers what a policy said.
template <typename Run>
auto with_ways(const DryParts& parts, PlannedRecompute& planned, std::vector<std::size_t> ways, const Run& run) {
  planned.set(std::move(ways));
  std::vector<MemoryStack::Named> strategies;
  strategies.push_back({"memory.budget", std::make_unique<Borrowed>(planned)});
  const MemoryStack stack(std::move(strategies));
  return run(DryParts{parts.model, parts.objective, stack, parts.placement, parts.trained, parts.optimizer, parts.ema,
                      parts.max_grad_norm, parts.micro_batches, parts.batch, parts.data});
}

using Costs = std::vector<std::vector<planner::BlockCost>>;

/// For every block the cost of every way.
Costs costs_of(const BudgetCase& question) {
  const std::size_t count = question.parts.model.blocks().size();
  Costs costs(count);
  for (std::size_t way = 0; way < question.planned.ways(); ++way) {
    const std::vector<BlockPlan> blocks = blocks_run(question.parts, question.planned, way);
    for (std::size_t i = 0; i < count; ++i) costs[i].push_back(blocks[i].cost);
  }
  return costs;
}

/// What one device has of the chain.
struct Part {
  std::size_t device = 0;  ///< index of the dry device
  std::vector<std::size_t> blocks;
  int64_t under_way = 1;  ///< most micro-batches whose backward is still to come
  planner::Chain chain;
};

std::size_t index_of(at::Device device) { return static_cast<std::size_t>(std::max<int64_t>(device.index(), 0)); }

/// Micro-batches under way on a device at most, by its stages.
int64_t most_under_way(const PlacementPlan& plan, std::size_t device) {
  const std::vector<Stage> stages = stages_of(plan);
  int64_t now = 0, most = 1;
  for (const ScheduleStep& step : plan.schedule) {
    const Stage& stage = stages[static_cast<std::size_t>(step.stage)];
    if (index_of(stage.device) != device || stage.first == stage.end) continue;
    now += step.pass == Pass::forward ? 1 : -1;
    most = std::max(most, now);
  }
  return most;
}

std::vector<Part> parts_of(const PlacementPlan& plan) {
  std::vector<Part> parts;
  for (std::size_t i = 0; i < plan.blocks.size(); ++i) {
    const std::size_t device = index_of(plan.blocks[i]);
    auto part = std::find_if(parts.begin(), parts.end(), [&](const Part& one) { return one.device == device; });
    if (part == parts.end()) part = parts.insert(parts.end(), {device, {}, most_under_way(plan, device), {}});
    part->blocks.push_back(i);
  }
  return parts;
}

/// The ways of a part's blocks. What a block keeps is there once for each micro-batch under way.
std::vector<std::vector<planner::Way>> ways_of(const Part& part, const Costs& costs, int64_t balance, bool first_step) {
  Costs own;
  for (const std::size_t block : part.blocks) own.push_back(costs[block]);
  std::vector<std::vector<planner::Way>> ways = planner::ways_of(own, balance, first_step);
  for (std::vector<planner::Way>& block : ways)
    for (planner::Way& way : block) {
      const int64_t others = (part.under_way - 1) * way.kept;
      way.kept += others;
      way.forward_peak += others;
      way.backward_peak += others;
    }
  return ways;
}

/// Sets the part's share of ways for the whole chain.
void spread(const Part& part, const planner::Choices& choices, std::vector<std::size_t>& ways) {
  for (std::size_t i = 0; i < part.blocks.size(); ++i) ways[part.blocks[i]] = choices.ways[i];
}

/// Bytes on each device while a whole step runs with these ways; not the first one.
std::vector<int64_t> steady_peaks(const BudgetCase& question, const std::vector<std::size_t>& ways) {
  const DryStep step = with_ways(question.parts, question.planned, ways, dry_step);
  std::vector<int64_t> peaks;
  for (std::size_t i = 0; i < step.devices.size(); ++i) {
    const StepBytes& bytes = step.devices[i];
    peaks.push_back((i < question.held.size() ? question.held[i] : 0) + bytes.optimizer + bytes.ema + bytes.peak);
  }
  return peaks;
}

/// The chains as the first step runs them, with all that lies outside the blocks: what a dry step of the plan that
/// needs least shows beyond the sum of its blocks.
std::vector<Part> chains_of(const BudgetCase& question, const Costs& costs) {
  const int64_t balance = planner::flops_per_byte(question.device);
  std::vector<Part> parts = parts_of(question.parts.placement);
  std::vector<std::size_t> ways(costs.size(), 0);
  std::vector<int64_t> least;
  for (Part& part : parts) {
    part.chain.blocks = ways_of(part, costs, balance, /*first_step=*/false);
    const planner::Choices choices = *planner::cheapest(part.chain, planner::smallest_budget(part.chain));
    least.push_back(choices.peak);
    spread(part, choices, ways);
  }
  const std::vector<int64_t> steady = steady_peaks(question, ways);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t device = parts[i].device;
    parts[i].chain.fixed = std::max(question.held.at(device), steady[device] - least[i]);
    parts[i].chain.blocks = ways_of(parts[i], costs, balance, /*first_step=*/true);
  }
  return parts;
}

/// Choices for all parts, or nothing when one of them has none.
std::optional<std::vector<planner::Choices>> choose(const std::vector<Part>& parts, int64_t budget) {
  std::vector<planner::Choices> choices;
  for (const Part& part : parts) {
    auto found = planner::cheapest(part.chain, budget);
    if (!found) return std::nullopt;
    choices.push_back(std::move(*found));
  }
  return choices;
}

BudgetPlan plan_of(const BudgetCase& question, const Costs& costs, const std::vector<std::size_t>& ways) {
  BudgetPlan plan;
  plan.format = question.format;
  const auto blocks = question.parts.model.blocks();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const planner::BlockCost& cost = costs[i][ways[i]];
    plan.blocks.push_back({blocks[i]->info().name, blocks[i]->info().type, question.planned.label(ways[i]), cost.kept,
                           cost.recomputed_flops});
    plan.flops += costs[i].front().forward_flops + costs[i].front().backward_flops;
    plan.recomputed_flops += cost.recomputed_flops;
  }
  return plan;
}

}  // namespace

std::vector<BlockPlan> blocks_run(const DryParts& parts, PlannedRecompute& planned, std::size_t way) {
  return with_ways(parts, planned, std::vector<std::size_t>(parts.model.blocks().size(), way), dry_blocks);
}

BudgetAnswer answer_budget(const BudgetCase& question, int64_t budget) {
  const Costs costs = costs_of(question);
  std::vector<Part> parts = chains_of(question, costs);
  BudgetAnswer answer;
  while (const auto choices = choose(parts, budget)) {
    std::vector<std::size_t> ways(costs.size(), 0);
    for (std::size_t i = 0; i < parts.size(); ++i) spread(parts[i], (*choices)[i], ways);
    const std::vector<int64_t> steady = steady_peaks(question, ways);
    int64_t peak = 0;
    bool fits = true;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const int64_t used = steady[parts[i].device];
      peak = std::max({peak, used, (*choices)[i].peak});
      if (used <= budget) continue;
      fits = false;
      parts[i].chain.fixed += used - (*choices)[i].peak;
    }
    if (!fits) continue;
    answer.plan = plan_of(question, costs, ways);
    answer.plan->budget = budget;
    answer.plan->peak = peak;
    break;
  }
  for (const Part& part : parts) answer.smallest = std::max(answer.smallest, planner::smallest_budget(part.chain));
  return answer;
}

std::vector<WayRow> rows_of(const std::vector<BlockPlan>& blocks, const std::function<std::string(std::size_t)>& way) {
  std::vector<WayRow> rows;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto known = std::find_if(rows.begin(), rows.end(),
                                    [&](const WayRow& row) { return row.type == blocks[i].type && row.way == way(i); });
    if (known == rows.end()) {
      rows.push_back({blocks[i].type, way(i), 1, blocks[i].cost});
    } else {
      ++known->blocks;
      known->cost = blocks[i].cost;  // the first block of a chain is no typical one: its inputs may need no gradient
    }
  }
  return rows;
}

}  // namespace trainer::train
