/// @file The objective "flow_matching" and the adapter "lora" made without the plugin host, and the plain pieces of a
/// training loop (placement, checkpointing strategy) that tests of the loop need.
#pragma once

#include <trainer/sdk/memory.hpp>
#include <trainer/sdk/placement.hpp>

#include <flow_matching/flow_matching.hpp>
#include <lora/lora.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trainer::testing {

/// Options of "flow_matching" with the defaults of the recipe, changed by `changes`.
inline Options flow_matching_options(const Table& changes = {}) {
  Table values{{"timesteps.distribution", {std::string("logit_normal")}},
               {"timesteps.mean", {0.0}},
               {"timesteps.std", {1.0}},
               {"timesteps.scale", {1.29}},
               {"timesteps.shift", {std::string("resolution")}},
               {"timesteps.uniform_fraction", {0.0}},
               {"timesteps.grid", {int64_t{0}}},
               {"guidance", {1.0}},
               {"weighting", {std::string("none")}},
               {"loss", {std::string("mse")}}};
  for (const auto& [key, value] : changes) values[key] = value;
  return {"objective", std::move(values)};
}

inline std::unique_ptr<Objective> flow_matching(const Table& changes = {}) {
  return flow_matching::make_flow_matching(flow_matching_options(changes));
}

/// Options of "lora": rank 4, alpha 4 and the defaults of the recipe, changed by `changes`.
inline std::unique_ptr<Adapter> lora(const Table& changes = {}) {
  Table values{{"rank", {int64_t{4}}},
               {"alpha", {4.0}},
               {"targets", {std::string("default")}},
               {"init", {std::string("kaiming")}},
               {"dtype", {std::string("fp32")}}};
  for (const auto& [key, value] : changes) values[key] = value;
  return lora::make_lora(Options("adapter", std::move(values)));
}

/// Everything on the CPU, one micro-batch after the other.
inline PlacementPlan one_device(std::size_t blocks, int64_t micro_batches) {
  PlacementPlan plan;
  plan.blocks.assign(blocks, at::kCPU);
  for (int64_t micro = 0; micro < micro_batches; ++micro) {
    plan.schedule.push_back({Pass::forward, 0, micro});
    plan.schedule.push_back({Pass::backward, 0, micro});
  }
  return plan;
}

/// Recomputes every block.
class RecomputeAll final : public MemoryStrategy, public RecomputePolicy {
 public:
  RecomputePolicy* recompute_policy() override { return this; }
  CheckpointOptions choose(const Site&) override { return {.recompute = true}; }
};

}  // namespace trainer::testing
