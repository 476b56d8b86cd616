/// @file Forwards through the model: its blocks as the memory strategies say, and whole passes without gradients along
/// the stages of a placement. The training step is execution/stage_executor.hpp.
#pragma once

#include <execution/chain.hpp>
#include <execution/memory_stack.hpp>
#include <execution/stages.hpp>
#include <trainer/sdk/objective.hpp>

namespace trainer::execution {

/// Blocks [first, end) of the chain. `state` may be null.
Flow run_blocks(const Chain& chain, Flow flow, std::size_t first, std::size_t end, const MemoryStack& memory,
                RecomputeState* state);

/// The graph of one micro-batch's loss (fp32 scalar), for a model on one device.
at::Tensor forward_loss(Model& model, const Objective& objective, const Example& example, const MemoryStack& memory,
                        RecomputeState& state, int64_t micro_batch);

/// The prediction without gradients, for samples; on the epilogue's device.
at::Tensor predict(Model& model, const NamedTensors& inputs, const MemoryStack& memory, const PlacementPlan& plan);
/// The same for a model on one device.
at::Tensor predict(Model& model, const NamedTensors& inputs, const MemoryStack& memory);

/// The loss of an example, of any device, along the stages, without gradients: what a training step would see; fp32
/// scalar on the epilogue's device.
at::Tensor loss_without_gradient(Model& model, const Objective& objective, const Example& example,
                                 const MemoryStack& memory, const PlacementPlan& plan);

/// Names the first part of the model whose output is not finite for this example ("block \"single.2\""), or "" when
/// all of the forward is finite. Runs the forward again without gradients; randomness is keyed, so it is the same one.
std::string first_non_finite(Model& model, const Example& example, const MemoryStack& memory,
                             const PlacementPlan& plan);

}  // namespace trainer::execution
