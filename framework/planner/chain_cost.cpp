#include <planner/chain_cost.hpp>

#include <algorithm>
#include <cmath>

namespace trainer::planner {

// `expansion` on a processor as measured: a matrix of 2,048 x 4,096 is expanded to bf16 in 2 ms, in which the product
// with 1,024 tokens that takes 40 ms does 0.86 GFLOP (docs/memory-strategies.md).
WorkRates work_rates(c10::DeviceType device) { return device == c10::kCUDA ? WorkRates{400, 400} : WorkRates{10, 50}; }

double expansion_work(const BlockCost& cost, const WorkRates& rates) {
  const double again = cost.forward_flops > 0 ? cost.recomputed_flops / cost.forward_flops : 0;
  return static_cast<double>(rates.expansion) * static_cast<double>(cost.expanded_bytes) * (2 + again);
}

int64_t work_of(const BlockCost& plain, const BlockCost& cost, const WorkRates& rates) {
  return std::llround(cost.recomputed_flops + expansion_work(cost, rates)) +
         rates.again * std::max<int64_t>(plain.kept - cost.kept, 0);
}

std::vector<std::vector<Way>> ways_of(const std::vector<std::vector<BlockCost>>& costs, const WorkRates& rates,
                                      bool first_step) {
  std::vector<std::vector<Way>> chain(costs.size());
  int64_t gradients = 0;  // of the blocks behind
  for (std::size_t i = costs.size(); i > 0; --i) {
    const BlockCost& plain = costs[i - 1].front();
    for (const BlockCost& cost : costs[i - 1])
      chain[i - 1].push_back({cost.kept, first_step ? cost.first_forward_peak : cost.forward_peak,
                              (first_step ? cost.first_backward_peak : cost.backward_peak) + gradients,
                              work_of(plain, cost, rates)});
    gradients += plain.gradients;
  }
  return chain;
}

}  // namespace trainer::planner
