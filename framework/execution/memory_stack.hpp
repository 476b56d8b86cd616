/// @file The memory strategies of a run, combined: at most one recompute policy, residency and store, one weight
/// format.
#pragma once

#include <c10/core/Device.h>
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

/// What identifies a weight format in checkpoints: its strategy and the identity of its options.
inline std::string format_identity(const std::string& strategy, const std::string& settings) {
  return strategy + " " + settings;
}

class MemoryStack {
 public:
  struct Named {
    std::string name;
    std::unique_ptr<MemoryStrategy> strategy;
    std::string settings{};  ///< identity of its options, for checkpoints
    double rounding = 0;     ///< that its packed weights may do: Tolerance::rounding of its manifest
    std::string changed{};   ///< options that are not at their default, e.g. `keep = "block"`, for messages
  };
  /// Whether every promise of stores, residencies and weight formats is checked at every call, as proofs do.
  enum class Promises { trusted, checked };

  MemoryStack() = default;
  /// Throws Error (bad_recipe) in one sentence naming both when two strategies want the same place or conflict.
  explicit MemoryStack(std::vector<Named> strategies, Promises promises = Promises::trusted);

  [[nodiscard]] WeightFormat* format() const { return format_.part.get(); }
  /// Name of the strategy that packs weights, or "".
  [[nodiscard]] const std::string& format_name() const { return format_.name; }
  /// format_identity of it, or "".
  [[nodiscard]] std::string format_identity() const;
  [[nodiscard]] WeightResidency* residency() const { return residency_.part.get(); }
  [[nodiscard]] ActivationStore* store() const { return store_.part.get(); }
  /// What does nothing here, in one sentence: a store of kept inputs where no strategy recomputes. Else "".
  [[nodiscard]] std::string idle() const;
  /// Whether a strategy chooses what is recomputed.
  [[nodiscard]] bool recomputes() const { return policy_.part != nullptr; }
  /// To be called once the first step is done: settings that had no effect are errors.
  void after_first_step() const;
  /// Only some of the model's blocks run: what names the others has no effect, rightly.
  void set_partial() { partial_ = true; }
  /// What the strategies do besides packing weights is left out: what packed weights are compared with.
  void keep_packing_only();
  /// On shapes a store has nothing to store: one that counts what it would hold on `host`, a dry device, takes its
  /// place.
  void store_on_shapes(at::Device host);
  /// How one block is run at `site`, its place in the whole model. `part`: its place among the blocks that take part
  /// in training, which is what a policy is asked for; null: it takes none and is run plainly. Throws PluginError when
  /// the policy answers otherwise than it did for this block before: micro-batches of a step would be treated
  /// differently.
  [[nodiscard]] BlockRun run_at(const Site& site, const Site* part, RecomputeState* state) const;

 private:
  /// A place that one strategy may take.
  template <class Part>
  struct Slot {
    std::string name;            ///< of the strategy, "" while the place is free
    std::unique_ptr<Part> part;  ///< the strategy's own, wrapped: what it throws names the strategy
  };
  /// Gives the place to `one` where it offers a part for it. `does` says what for, in the error when it is taken.
  template <class Part>
  void take(Slot<Part>& slot, const Named& one, Part* offered, const char* does, Promises promises);
  [[nodiscard]] const Named& named(const std::string& name) const;

  std::vector<Named> strategies_;
  Slot<WeightFormat> format_;
  Slot<WeightResidency> residency_;
  Slot<ActivationStore> store_;
  Slot<RecomputePolicy> policy_;
  bool partial_ = false;
  bool whole_model_ = false;  ///< the policy is a WholeModelPolicy
  mutable std::map<std::tuple<std::string, int64_t, int64_t>, CheckpointOptions> answers_;  ///< block, index, count
};

}  // namespace trainer::execution
