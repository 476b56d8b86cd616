/// @file Runs a block: plainly, or keeping its inputs only and recomputing it in backward. Used by the host for every
/// strategy including none; prototype and traps: docs/adr/0003-recompute-engine.md.
///
/// In both modes every differentiable shared tensor and parameter reaches the block through a node of its own, so that
/// gradients of N blocks are summed in the same order whatever the strategy: recomputed == plain, bit for bit.
#pragma once

#include <trainer/sdk/memory.hpp>

#include <set>

namespace trainer {

/// What recomputation does in one block: heavy calls and their floating-point operations. For reports.
struct RecomputeReport {
  int64_t forward_calls = 0, recomputed_calls = 0, kept_calls = 0, elided_calls = 0;
  double forward_flops = 0, recomputed_flops = 0, elided_flops = 0;
  int64_t kept_bytes = 0;               ///< of kept outputs, besides the block's inputs
  std::vector<std::string> kept, dead;  ///< "op#index"
};

/// What the engine learns in a run and reports: which sites were verified, what is dead in them, what was recomputed.
/// Owned by the run. A site is a block with the shapes, dtypes, strides and requires_grad bits of its inputs and
/// parameters; every block is verified once for each.
struct RecomputeState {
  std::set<std::string> signatures;
  bool always = false;  ///< verify every run; in a recipe memory.verify = "always"
  /// Name of a leaf tensor for messages, e.g. a parameter's; may be empty.
  std::function<std::string(const at::Tensor&)> name_of;

  /// Dead heavy calls by elision site, and the sites that are tested again at their next backward.
  std::map<std::string, std::set<int64_t>> dead;
  std::set<std::string> stale;
  /// Has every elision tested again, on the values of that time.
  void recheck_elision() {
    for (const auto& [site, calls] : dead) stale.insert(site);
  }
  /// By block type: bytes of the flow that a recomputed block keeps, shared tensors included; 0 with a store.
  std::map<std::string, int64_t> input_bytes;
  std::map<std::string, RecomputeReport> reports;  ///< by block type, of the last block of it that ran
};

/// What surrounds one run of a block; null members are not used.
struct BlockRun {
  Site site;
  CheckpointOptions options;
  ActivationStore* store = nullptr;
  WeightResidency* residency = nullptr;
  RecomputeState* state = nullptr;  ///< null: no verification (tests of the detectors themselves)
};

/// Adds up the floating-point operations of the matrix products, convolutions and attentions that run on this thread as
/// long as it lives, backward and recompute included; what a recompute keeps or elides does not run. May be nested.
class TRAINER_API FlopCounter {
 public:
  FlopCounter();
  ~FlopCounter();
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;
  [[nodiscard]] double flops() const { return flops_; }

 private:
  friend void count_flops(double flops);
  double flops_ = 0;
  FlopCounter* outer_;
};

/// Runs `block` on `flow` and returns the new carried tensors. On meta tensors, which have shapes only, nothing is
/// verified and no dead values are looked for.
/// Throws Error naming block and tensor when the block reads a differentiable tensor that is neither in its flow nor
/// one of its parameters, changes an input in place, computes something else in the recompute, or when a second
/// derivative (create_graph) is asked of a recomputed block. A throw leaves the process able to run the step again.
TRAINER_API std::vector<at::Tensor> run_block(Block& block, const Flow& flow, const BlockRun& run);

}  // namespace trainer
