#include <planner/chain_cost.hpp>
#include <planning/budget.hpp>
#include <planning/chain_parts.hpp>

#include <algorithm>

namespace trainer::planning {
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
auto with_ways(const DryParts& parts, assembly::PlannedRecompute& planned, std::vector<std::size_t> ways,
               const Run& run) {
  planned.set(std::move(ways));
  std::vector<execution::MemoryStack::Named> strategies;
  strategies.push_back({assembly::kBudget, std::make_unique<Borrowed>(planned)});
  const execution::MemoryStack stack(std::move(strategies));
  return run(DryParts{parts.model, parts.objective, stack, parts.placement, parts.trained, parts.optimizer, parts.ema,
                      parts.max_grad_norm, parts.micro_batches, parts.batch, parts.data, parts.fused_backward});
}

/// For every block the cost of every way.
BlockCosts costs_of(const BudgetCase& question) {
  const std::size_t count = question.parts.model.blocks().size();
  BlockCosts costs(count);
  for (std::size_t way = 0; way < question.planned.ways(); ++way) {
    const std::vector<BlockPlan> blocks = blocks_run(question.parts, question.planned, way);
    for (std::size_t i = 0; i < count; ++i) costs[i].push_back(blocks[i].cost);
  }
  return costs;
}

/// A device's part of the chain, and its search.
struct Part : ChainPart {
  planner::Chain chain;
};

/// Sets the part's share of ways for the whole chain.
void spread(const Part& part, const planner::Choices& choices, std::vector<std::size_t>& ways) {
  for (std::size_t i = 0; i < part.blocks.size(); ++i) ways[part.blocks[i]] = choices.ways[i];
}

/// Ways for the whole chain, tried in a dry step.
struct Trial {
  std::vector<std::size_t> ways;
  std::vector<StepBytes> steps;
  std::vector<int64_t> resident, peaks;  ///< by device; peaks: of the run's steps, the first included
  int64_t quantum = 1;                   ///< the coarsest that a device's part was searched with
};

Trial tried(const BudgetCase& question, const BlockCosts& costs, std::vector<std::size_t> ways) {
  Trial trial{std::move(ways), {}, {}, {}, 1};
  trial.steps = with_ways(question.parts, question.planned, trial.ways, dry_step).devices;
  const auto first = first_passes(question.parts.placement, costs, trial.ways, trial.steps);
  for (std::size_t i = 0; i < trial.steps.size(); ++i) {
    const StepBytes& bytes = trial.steps[i];
    const int64_t held = i < question.held.size() ? question.held[i] : 0;
    trial.resident.push_back(held + bytes.optimizer + bytes.ema);
    trial.peaks.push_back(trial.resident.back() + std::max(first[i], bytes.peak));
  }
  return trial;
}

/// The chains as the first step runs them. What lies outside the blocks is what a dry step shows of the plan that needs
/// least.
std::vector<Part> chains_of(const BudgetCase& question, const BlockCosts& costs) {
  std::vector<Part> parts;
  for (ChainPart& part : parts_of(question.parts.placement)) parts.push_back({std::move(part), {}});
  std::vector<std::size_t> ways(costs.size(), 0);
  for (Part& part : parts) {
    part.chain.blocks = ways_of(part, costs, planner::work_rates(question.device), /*first_step=*/true);
    spread(part, *planner::cheapest(part.chain, planner::smallest_budget(part.chain)), ways);
  }
  const Trial trial = tried(question, costs, ways);
  for (Part& part : parts) part.chain.fixed = trial.resident[part.device] + outside(part, trial.steps[part.device]);
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

/// The cheapest ways that fit, tried in a dry step; chosen again with less room (`parts` are changed) where that needs
/// more than the sum of the blocks says.
std::optional<Trial> fitting(const BudgetCase& question, const BlockCosts& costs, std::vector<Part>& parts,
                             int64_t budget) {
  while (const auto choices = choose(parts, budget)) {
    std::vector<std::size_t> ways(costs.size(), 0);
    for (std::size_t i = 0; i < parts.size(); ++i) spread(parts[i], (*choices)[i], ways);
    Trial trial = tried(question, costs, std::move(ways));
    bool fits = true;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      trial.quantum = std::max(trial.quantum, (*choices)[i].quantum);
      const std::size_t device = parts[i].device;
      planner::Chain& chain = parts[i].chain;
      const int64_t used = trial.peaks[device];
      if (used <= budget) continue;
      fits = false;
      if (trial.steps[device].peak > trial.steps[device].passes)  // in the update, whatever the blocks keep
        chain.fixed += used - (*choices)[i].peak;
      else  // outside the blocks, while all is kept
        chain.tail_peak = used - chain.fixed - (*choices)[i].kept;
    }
    if (fits) return trial;
  }
  return std::nullopt;
}

planner::BudgetPlan plan_of(const BudgetCase& question, const BlockCosts& costs, const std::vector<std::size_t>& ways) {
  planner::BudgetPlan plan;
  plan.format = question.format;
  const auto blocks = question.parts.model.blocks();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const planner::BlockCost& cost = costs[i][ways[i]];
    plan.blocks.push_back({blocks[i]->info().name, blocks[i]->info().type, question.planned.label(ways[i]), cost.kept,
                           cost.recomputed_flops});
    plan.flops += costs[i].front().forward_flops + costs[i].front().backward_flops;
    plan.recomputed_flops += cost.recomputed_flops;
    const planner::WorkRates rates = planner::work_rates(question.device);
    plan.expansion_flops += planner::expansion_work(cost, rates);
    plan.work += planner::work_of(costs[i].front(), cost, rates);
  }
  return plan;
}

}  // namespace

std::vector<BlockPlan> blocks_run(const DryParts& parts, assembly::PlannedRecompute& planned, std::size_t way) {
  return with_ways(parts, planned, std::vector<std::size_t>(parts.model.blocks().size(), way), dry_blocks);
}

std::optional<planner::BudgetPlan> answer_budget(const BudgetCase& question, int64_t budget) {
  for (const ChainPart& part : parts_of(question.parts.placement))
    if (question.held.at(part.device) > budget) return std::nullopt;  // whatever the blocks do
  const BlockCosts costs = costs_of(question);
  std::vector<Part> parts = chains_of(question, costs);
  const std::optional<Trial> trial = fitting(question, costs, parts, budget);
  if (!trial) return std::nullopt;
  planner::BudgetPlan plan = plan_of(question, costs, trial->ways);
  plan.budget = budget;
  plan.quantum = trial->quantum;
  for (const Part& part : parts) plan.peak = std::max(plan.peak, trial->peaks[part.device]);
  return plan;
}

int64_t smallest_budget(const BudgetCase& question) {
  const BlockCosts costs = costs_of(question);
  std::vector<Part> parts = chains_of(question, costs);
  const auto smallest = [&] {
    int64_t bytes = 0;
    for (const Part& part : parts) bytes = std::max(bytes, planner::smallest_budget(part.chain));
    return bytes;
  };
  // What does not fit after all leaves less room, so that the next one is larger.
  int64_t budget = smallest();
  while (!fitting(question, costs, parts, budget)) budget = smallest();
  return budget;
}

std::vector<planner::WayRow> rows_of(const std::vector<BlockPlan>& blocks,
                                     const std::function<std::string(std::size_t)>& way) {
  std::vector<planner::WayRow> rows;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto known = std::find_if(rows.begin(), rows.end(), [&](const planner::WayRow& row) {
      return row.type == blocks[i].type && row.way == way(i);
    });
    if (known == rows.end()) {
      rows.push_back({blocks[i].type, way(i), 1, blocks[i].cost});
    } else {
      ++known->blocks;
      known->cost = blocks[i].cost;  // the first block of a chain is no typical one: its inputs may need no gradient
    }
  }
  return rows;
}

}  // namespace trainer::planning
