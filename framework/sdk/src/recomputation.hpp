/// @file One run of a recomputed block: what it keeps from its forward, and how it is run again. The engine
/// (recompute.cpp), its checks (verifier.hpp) and the search for dead values (elision.hpp) share it. Private to the
/// SDK.
#pragma once

#include <ATen/core/ivalue.h>
#include <trainer/sdk/recompute.hpp>

#include <memory>
#include <vector>

#include "op_region.hpp"

namespace trainer::recompute {

class Verifier;

/// Lives as long as the node of the block, which is as long as the loss.
struct Recomputation : torch::CustomClassHolder {
  using Tensors = std::vector<at::Tensor>;

  Recomputation(Block& block_in, const Flow& flow, const BlockRun& run_in, std::vector<Parameter*> parameters_in);
  ~Recomputation() override;

  Block& block;
  BlockRun run;
  Flow shape;  ///< the flow's numbers, and which of its tensors are defined; holds none of them
  std::vector<Parameter*> parameters;
  std::unique_ptr<OpRegion> region;    ///< null: every operation is recomputed, unseen
  std::unique_ptr<Verifier> verifier;  ///< null: nothing is verified
  OpTrace* trace = nullptr;            ///< where the next run notes its heavy calls; null: nowhere
  RecomputeReport report;

  /// What the forward returned: shape, dtype and device without memory, or the values where they are verified.
  Tensors outputs;

  /// Runs the block on its flat inputs (see FlatInputs), for the first time.
  [[nodiscard]] Tensors record(const Tensors& flat) const;
  /// Runs it again, with gradients on. Refuses other heavy calls than the first run made.
  [[nodiscard]] Tensors replay(const Tensors& leaves) const;
  /// A replay and backward through it: one gradient a leaf, undefined where it has none.
  [[nodiscard]] Tensors gradients(const Tensors& leaves, const Tensors& output_grads) const;

 private:
  [[nodiscard]] Tensors forward(OpRegion::Mode mode, const Tensors& flat) const;
};

/// Runs a block on flat inputs: its flow's, then its parameters'. `like`: which tensors of the flow are defined.
std::vector<at::Tensor> forward_on(Block& block, const Flow& like, const std::vector<Parameter*>& parameters,
                                   const std::vector<at::Tensor>& flat);

/// Backward from `outputs` into the leaves that require a gradient: one gradient a leaf, undefined where it has none.
std::vector<at::Tensor> gradients_of(std::vector<at::Tensor> outputs, std::vector<at::Tensor> output_grads,
                                     const std::vector<at::Tensor>& leaves);

/// Into the reports of the run: what the forward kept, and what a replay ran and left out.
void report_forward(Recomputation& recomputation, const Flow& flow);
void report_replay(Recomputation& recomputation);

}  // namespace trainer::recompute
