/// @file Dead values: heavy operations whose result nothing in the recompute reads (the last frozen linear of a block
/// whose gate needs no gradient). Found by poisoning, one site at a time. Private to the SDK.
///
/// An operation is dead for a site when every gradient stays bit-equal with its value replaced by NaN AND by two finite
/// poisons of both signs: NaN alone passes through max-like operations and comparisons, finite ones alone through
/// others. Output gradients and trained parameters are randomised for the test, since zero-initialised adapters would
/// make live values look dead. The flow's inputs are varied as well, since a value may be hidden by what they hold just
/// now (a padding mask that masks everything); those that are no floating-point numbers cannot be, so a block that
/// reads one has no dead values.
///
/// A block's own frozen numbers cannot be varied, and may hide a reader as well (a frozen matrix of zeros, as pruning
/// leaves it). So every block has an answer of its own; one that another block of its site has found is taken once the
/// block has passed the same test with it, which costs four reruns in place of a search.
#pragma once

#include "recomputation.hpp"

namespace trainer::recompute {

/// Sets which heavy calls the next replay leaves out, where the options ask for it: found by trial at the block's first
/// backward, kept in RecomputeState::dead, tested again where it is stale. `keep_graph`: kept outputs stay for another
/// backward. Throws when a result is read now that was dead when it was tested.
void leave_out_dead(const Recomputation& recomputation, const std::vector<at::Tensor>& leaves,
                    const std::vector<at::Tensor>& output_grads, bool keep_graph);

}  // namespace trainer::recompute
