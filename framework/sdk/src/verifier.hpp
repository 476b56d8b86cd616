/// @file The first run of a block at a site, verified: wraps around the engine, which knows nothing of it but when to
/// ask. What is looked for and why it is complete: docs/adr/0003-recompute-engine.md. Private to the SDK.
#pragma once

#include <functional>

#include "recomputation.hpp"
#include "recompute_checks.hpp"

namespace trainer::recompute {

/// Holds the values of a verified forward until the block's backward has repeated them.
class Verifier {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// One for a run that is to be verified, null for others: a site is verified once, or always where the state says so.
  /// `inputs` are the block's, and are not kept.
  static std::unique_ptr<Verifier> of(const Recomputation& recomputation, const Flow& flow, const FlatInputs& inputs);

  /// Runs `forward`, between two runs with gradients on whose graphs may end in `inputs` only. Outputs and heavy calls
  /// of all three must be the same.
  Tensors around_forward(Recomputation& recomputation, const Flow& flow, const FlatInputs& inputs,
                         const std::function<Tensors()>& forward);

  /// A replay that leaves nothing out, for its outputs alone: a dead value is a placeholder, and what it reaches holds
  /// anything. Where the block has no region `replay` compares instead.
  void replay_whole(const Recomputation& recomputation, const Tensors& leaves) const;
  /// The recompute. It must make the forward's heavy calls and, without a region, return its values.
  [[nodiscard]] Tensors replay(Recomputation& recomputation, const Tensors& leaves) const;

 private:
  explicit Verifier(std::string site) : site_(std::move(site)) {}

  std::string site_;
  OpTrace calls_;  ///< of the forward
};

}  // namespace trainer::recompute
