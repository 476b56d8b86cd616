#include <execution/stages.hpp>
#include <planning/chain_parts.hpp>

#include <algorithm>

namespace trainer::planning {
namespace {

/// Micro-batches under way on a device at most, by its stages.
int64_t most_under_way(const PlacementPlan& plan, std::size_t device) {
  const std::vector<execution::Stage> stages = execution::stages_of(plan);
  int64_t now = 0, most = 1;
  for (const ScheduleStep& step : plan.schedule) {
    const execution::Stage& stage = stages[static_cast<std::size_t>(step.stage)];
    if (dry_index(stage.device) != device || stage.first == stage.end) continue;
    now += step.pass == Pass::forward ? 1 : -1;
    most = std::max(most, now);
  }
  return most;
}

/// What kernels take inside for a while and shapes do not show: 13 to 37 kB on the CPU in bf16, whatever the sizes.
constexpr int64_t kKernelBuffers = 48 << 10;

}  // namespace

std::vector<ChainPart> parts_of(const PlacementPlan& plan) {
  std::vector<ChainPart> parts;
  for (std::size_t i = 0; i < plan.blocks.size(); ++i) {
    const std::size_t device = dry_index(plan.blocks[i]);
    auto part = std::find_if(parts.begin(), parts.end(), [&](const ChainPart& one) { return one.device == device; });
    if (part == parts.end()) part = parts.insert(parts.end(), {device, {}, most_under_way(plan, device)});
    part->blocks.push_back(i);
  }
  return parts;
}

std::vector<std::vector<planner::Way>> ways_of(const ChainPart& part, const BlockCosts& costs,
                                               const planner::WorkRates& rates, bool first_step) {
  BlockCosts own;
  for (const std::size_t block : part.blocks) own.push_back(costs[block]);
  std::vector<std::vector<planner::Way>> ways = planner::ways_of(own, rates, first_step);
  for (std::vector<planner::Way>& block : ways)
    for (planner::Way& way : block) {
      const int64_t others = (part.under_way - 1) * way.kept;
      way.kept += others;
      way.forward_peak += others;
      way.backward_peak += others;
    }
  return ways;
}

int64_t outside(const ChainPart& part, const StepBytes& step) {
  return part.under_way * step.before_blocks + kKernelBuffers;
}

std::vector<int64_t> first_passes(const PlacementPlan& plan, const BlockCosts& costs,
                                  const std::vector<std::size_t>& ways, const std::vector<StepBytes>& steps) {
  std::vector<int64_t> bytes(steps.size());
  for (const ChainPart& part : parts_of(plan)) {
    std::vector<std::size_t> own;
    for (const std::size_t block : part.blocks) own.push_back(ways[block]);
    const planner::Chain chain{outside(part, steps.at(part.device)), 0, ways_of(part, costs, {}, /*first_step=*/true)};
    bytes.at(part.device) = planner::evaluate(chain, std::move(own)).peak;
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::max(bytes[i], steps[i].passes + kKernelBuffers);
  return bytes;
}

}  // namespace trainer::planning
