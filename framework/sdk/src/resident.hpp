/// @file When a block's weights must be at hand (WeightResidency): around its forward, and around its backward whether
/// the block is recomputed there or autograd runs what it kept.
#pragma once

#include <trainer/sdk/recompute.hpp>

#include <memory>
#include <vector>

namespace trainer::recompute {

/// Calls the residency around one run of a block, also when the run throws.
class Resident {
 public:
  Resident(const BlockRun& run, Pass pass) : run_(run), pass_(pass) {
    if (run_.residency != nullptr) run_.residency->before(run_.site, pass_);
  }
  ~Resident() {
    if (run_.residency != nullptr) run_.residency->after(run_.site, pass_);
  }
  Resident(const Resident&) = delete;
  Resident& operator=(const Resident&) = delete;

 private:
  const BlockRun& run_;
  Pass pass_;
};

/// The backward of a block that is not recomputed, as a stay of its weights: two autograd nodes around the block begin
/// and end it. A backward that dies between them ends it when its graph is freed.
class BackwardStay {
 public:
  explicit BackwardStay(const BlockRun& run);
  /// The tensors, those that require grad through one node whose backward comes after the whole block's.
  [[nodiscard]] std::vector<at::Tensor> inputs(std::vector<at::Tensor> tensors) const;
  /// The same for the block's outputs; the node's backward comes before the block's.
  [[nodiscard]] std::vector<at::Tensor> outputs(std::vector<at::Tensor> tensors) const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace trainer::recompute
