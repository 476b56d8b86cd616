#include <planner/chain_cost.hpp>

#include <algorithm>
#include <cmath>

namespace trainer::planner {
namespace {

/// Copies, in sizes of a block's inputs, that the first backward of a block holds at most while dead values are looked
/// for: random output gradients, other inputs, the true gradients and those of a trial, of carried and shared inputs,
/// for each of two sets of inputs, and poison; some of them in fp32 while they are made.
constexpr int64_t kTrialCopies = 12;
/// And in sizes of its trained parameters: random ones, and their gradients.
constexpr int64_t kTrialParameters = 4;

}  // namespace

int64_t flops_per_byte(c10::DeviceType device) { return device == c10::kCUDA ? 400 : 10; }

std::vector<std::vector<Way>> ways_of(const std::vector<std::vector<BlockCost>>& costs, int64_t flops_per_byte,
                                      bool first_step) {
  std::vector<std::vector<Way>> chain(costs.size());
  int64_t gradients = 0;  // of the blocks behind
  for (std::size_t i = costs.size(); i > 0; --i) {
    const std::vector<BlockCost>& block = costs[i - 1];
    const BlockCost& plain = block.front();
    int64_t least = plain.kept;  // about the size of the inputs
    for (const BlockCost& cost : block) least = std::min(least, cost.kept);
    for (const BlockCost& cost : block) {
      const int64_t trials = first_step && cost.kept < plain.kept
                                 ? kTrialCopies * least + kTrialParameters * plain.gradients +
                                       (cost.kept - least)  // kept values outlive each trial
                                 : 0;
      const int64_t verified = first_step ? cost.kept + plain.forward_peak + least : 0;
      const int64_t again = std::max<int64_t>(plain.kept - cost.kept, 0);
      chain[i - 1].push_back({cost.kept, std::max(cost.forward_peak, verified), cost.backward_peak + gradients + trials,
                              std::llround(cost.recomputed_flops) + flops_per_byte * again});
    }
    gradients += plain.gradients;
  }
  return chain;
}

}  // namespace trainer::planner
