/// @file The memory strategies of a run, combined: at most one recompute policy, residency and store, one weight
/// format.
#pragma once

#include <execution/checked_strategies.hpp>
#include <execution/dry_store.hpp>
#include <execution/guarded_strategies.hpp>
#include <trainer/sdk/memory.hpp>
#include <trainer/sdk/recompute.hpp>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace trainer::execution {

/// A recompute policy of the host's own: a plan that names every block of the model, and is asked with `Site`s of that.
class WholeModelPolicy : public RecomputePolicy {};

class MemoryStack {
 public:
  struct Named {
    std::string name;
    std::unique_ptr<MemoryStrategy> strategy;
    std::string settings{};  ///< identity of its options, for checkpoints
    double rounding = 0;     ///< that its packed weights may do: Tolerance::rounding of its manifest
    std::string changed{};   ///< options that are not at their default, e.g. `keep = "block"`, for messages
  };
  MemoryStack() = default;
  /// Throws Error (bad_recipe) in one sentence naming both when two strategies want the same place or conflict.
  explicit MemoryStack(std::vector<Named> strategies);

  [[nodiscard]] WeightFormat* format() const { return format_; }
  /// Name and options of the strategy that packs weights, or "".
  [[nodiscard]] std::string format_name() const { return format_name_; }
  [[nodiscard]] WeightResidency* residency() const { return residency_; }
  [[nodiscard]] ActivationStore* store() const { return store_; }
  /// What does nothing here, in one sentence: a store of kept inputs where no strategy recomputes. Else "".
  [[nodiscard]] std::string idle() const;
  /// Whether a strategy chooses what is recomputed.
  [[nodiscard]] bool recomputes() const { return policy_ != nullptr; }
  /// To be called once the first step is done: settings that had no effect are errors.
  void after_first_step() const {
    if (policy_ != nullptr && !partial_) guarded_policy_.after_first_step();
  }
  /// Only some of the model's blocks run: what names the others has no effect, rightly.
  void set_partial() { partial_ = true; }
  /// What the strategies do besides packing weights is left out: what packed weights are compared with.
  void keep_packing_only() {
    residency_ = nullptr;
    store_ = nullptr;
    policy_ = nullptr;
  }
  /// On shapes a store has nothing to store: one that counts what it would hold on `host`, a dry device, takes its
  /// place.
  void store_on_shapes(at::Device host) {
    if (store_ == nullptr) return;
    dry_store_ = std::make_unique<DryStore>(host);
    store_ = dry_store_.get();
  }
  /// From now on every promise of stores, residencies and weight formats is checked at every call: for proofs. Before
  /// the first use.
  void check_promises();
  /// How one block is run at `site`, its place in the whole model. `part`: its place among the blocks that take part
  /// in training, which is what a policy is asked for; null: it takes none and is run plainly. Throws PluginError when
  /// the policy answers otherwise than it did for this block before: micro-batches of a step would be treated
  /// differently.
  [[nodiscard]] BlockRun run_at(const Site& site, const Site* part, RecomputeState* state) const;

 private:
  std::vector<Named> strategies_;
  WeightFormat* format_ = nullptr;
  std::string format_name_;
  WeightResidency* residency_ = nullptr;
  ActivationStore* store_ = nullptr;
  RecomputePolicy* policy_ = nullptr;
  std::string policy_name_, store_name_, residency_name_;
  const Named* packer_ = nullptr;  ///< whose `format_` is
  std::unique_ptr<GuardedFormat> guarded_format_;
  std::unique_ptr<GuardedStore> guarded_store_;
  std::unique_ptr<GuardedResidency> guarded_residency_;
  mutable GuardedPolicy guarded_policy_;
  std::unique_ptr<DryStore> dry_store_;
  std::unique_ptr<CheckedStore> checked_store_;
  std::unique_ptr<CheckedResidency> checked_residency_;
  std::unique_ptr<CheckedFormat> checked_format_;
  bool partial_ = false;
  bool whole_model_ = false;  ///< the policy is a WholeModelPolicy
  mutable std::map<std::tuple<std::string, int64_t, int64_t>, CheckpointOptions> answers_;  ///< block, index, count
};

}  // namespace trainer::execution
