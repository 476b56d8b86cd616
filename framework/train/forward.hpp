/// @file One micro-batch through the model: prologue, blocks as the memory strategies say, epilogue inside the loss.
#pragma once

#include <train/memory_stack.hpp>
#include <trainer/sdk/objective.hpp>

namespace trainer::train {

/// The graph of one micro-batch's loss (fp32 scalar).
at::Tensor forward_loss(Model& model, const Objective& objective, const Example& example, const MemoryStack& memory,
                        VerifiedSites& verified, int64_t micro_batch);

/// The prediction without gradients, for samples; `residency` may be null.
at::Tensor predict(Model& model, const NamedTensors& inputs, const MemoryStack& memory);

/// Names the first part of the model whose output is not finite for this example ("block \"single.2\""), or "" when
/// all of the forward is finite. Runs the forward again without gradients; randomness is keyed, so it is the same one.
std::string first_non_finite(Model& model, const Example& example, const MemoryStack& memory);

}  // namespace trainer::train
