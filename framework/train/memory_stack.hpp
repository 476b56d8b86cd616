/// @file The memory strategies of a run, combined: at most one recompute policy, residency and store; any formats.
#pragma once

#include <trainer/sdk/memory.hpp>
#include <trainer/sdk/recompute.hpp>

#include <memory>
#include <string>
#include <vector>

namespace trainer::train {

class MemoryStack {
 public:
  struct Named {
    std::string name;
    std::unique_ptr<MemoryStrategy> strategy;
  };
  MemoryStack() = default;
  /// Throws Error (bad_recipe) in one sentence naming both when two strategies want the same place or conflict.
  explicit MemoryStack(std::vector<Named> strategies);

  [[nodiscard]] std::vector<WeightFormat*> formats() const { return formats_; }
  [[nodiscard]] WeightResidency* residency() const { return residency_; }
  /// To be called once the first step is done: settings that had no effect are errors.
  void after_first_step() const {
    if (policy_ != nullptr) policy_->after_first_step();
  }
  /// How one block is run at `site`.
  [[nodiscard]] BlockRun run_at(const Site& site, VerifiedSites* verified) const;

 private:
  std::vector<Named> strategies_;
  std::vector<WeightFormat*> formats_;
  WeightResidency* residency_ = nullptr;
  ActivationStore* store_ = nullptr;
  RecomputePolicy* policy_ = nullptr;
};

}  // namespace trainer::train
