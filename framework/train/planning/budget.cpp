#include <planner/chain_cost.hpp>
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
                      parts.max_grad_norm, parts.micro_batches, parts.batch});
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

/// Bytes while a whole step runs with these ways; not the first one.
int64_t steady_peak(const BudgetCase& question, const std::vector<std::size_t>& ways) {
  const StepBytes bytes = with_ways(question.parts, question.planned, ways, dry_step);
  return question.held + bytes.optimizer + bytes.ema + bytes.peak;
}

/// The chain as the first step runs it, with all that lies outside the blocks: what a dry step of the plan that needs
/// least shows beyond the sum of its blocks.
planner::Chain chain_of(const BudgetCase& question, const Costs& costs) {
  const int64_t balance = planner::flops_per_byte(question.device);
  planner::Chain chain;
  chain.blocks = planner::ways_of(costs, balance, /*first_step=*/false);
  const planner::Choices least = *planner::cheapest(chain, planner::smallest_budget(chain));
  chain.fixed = std::max(question.held, steady_peak(question, least.ways) - least.peak);
  chain.blocks = planner::ways_of(costs, balance, /*first_step=*/true);
  return chain;
}

BudgetPlan plan_of(const BudgetCase& question, const Costs& costs, const planner::Choices& choices, int64_t budget) {
  BudgetPlan plan;
  plan.budget = budget;
  plan.peak = choices.peak;
  plan.format = question.format;
  const auto blocks = question.parts.model.blocks();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const planner::BlockCost& cost = costs[i][choices.ways[i]];
    plan.blocks.push_back({blocks[i]->info().name, blocks[i]->info().type, question.planned.label(choices.ways[i]),
                           cost.kept, cost.recomputed_flops});
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
  planner::Chain chain = chain_of(question, costs);
  BudgetAnswer answer;
  while (const auto choices = planner::cheapest(chain, budget)) {
    const int64_t steady = steady_peak(question, choices->ways);
    if (steady <= budget) {
      answer.plan = plan_of(question, costs, *choices, budget);
      answer.plan->peak = std::max(choices->peak, steady);
      break;
    }
    chain.fixed += steady - choices->peak;
  }
  answer.smallest = planner::smallest_budget(chain);
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
