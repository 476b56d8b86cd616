/// @file The built-in objective and adapter made without the plugin host, and the plain pieces of a training loop
/// (placement, checkpointing strategy) that tests of the loop need.
#pragma once

#include <trainer/sdk/placement.hpp>
#include <trainer/sdk/registrar.hpp>

#include <adapter/lora.hpp>
#include <memory>
#include <objective/flow_matching.hpp>
#include <string>
#include <utility>
#include <vector>

namespace trainer::testing {

/// Keeps what a module registers.
class KeepingRegistrar final : public Registrar {
 public:
  void add(ModelComponent) override {}
  void add(TextEncoderComponent) override {}
  void add(AutoencoderComponent) override {}
  void add(ObjectiveComponent component) override { objective = std::move(component); }
  void add(AdapterComponent component) override { adapter = std::move(component); }
  void add(MemoryComponent) override {}
  void add(PlacementComponent) override {}
  ObjectiveComponent objective;
  AdapterComponent adapter;
};

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
  KeepingRegistrar registrar;
  objective::register_flow_matching(registrar);
  return registrar.objective.create(flow_matching_options(changes));
}

/// Options of "lora": rank 4, alpha 4 and the defaults of the recipe, changed by `changes`.
inline std::unique_ptr<Adapter> lora(const Table& changes = {}) {
  Table values{{"rank", {int64_t{4}}},
               {"alpha", {4.0}},
               {"targets", {std::string("default")}},
               {"init", {std::string("kaiming")}},
               {"dtype", {std::string("fp32")}}};
  for (const auto& [key, value] : changes) values[key] = value;
  KeepingRegistrar registrar;
  adapter::register_lora(registrar);
  return registrar.adapter.create(Options("adapter", std::move(values)));
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
