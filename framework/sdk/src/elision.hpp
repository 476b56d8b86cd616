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

#include "op_region.hpp"

namespace trainer::recompute {

/// Reruns a block on `leaves` with the region's settings and returns the gradients of the leaves that require one.
using Trial = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& leaves,
                                                    const std::vector<at::Tensor>& output_grads)>;

/// Text that is equal exactly for runs with the same dead values, but for frozen numbers that hide one: block type, the
/// flow's numbers (`sizes`), shapes, dtypes, strides, which inputs, outputs and which of the block's parameters have
/// gradients, and what is kept.
std::string elision_site(const Block& block, const std::vector<int64_t>& sizes, const OpRegion& region,
                         const std::vector<at::Tensor>& leaves, const std::vector<at::Tensor>& output_grads);

/// What other blocks of a site have found, the largest first.
using Answers = std::vector<std::set<int64_t>>;

/// Positions of dead calls. `leaves`: the block's inputs, the last `parameters` of them trained parameters. `known`:
/// the first of them that holds here is the answer; they are searched for when none does.
std::set<int64_t> find_dead(OpRegion& region, const std::vector<at::Tensor>& leaves, std::size_t parameters,
                            const std::vector<at::Tensor>& output_grads, const Answers& known, const Trial& trial);

/// The key of a block's answer in RecomputeState::dead, and the answers that other blocks of its site have there.
std::string answer_key(const std::string& site, const Block& block);
Answers answers_at(const std::string& site, const RecomputeState& state);

/// Throws unless the gradients on real values are bit-equal whatever stands in the place of the dead ones.
void require_still_dead(const Block& block, OpRegion& region, const std::set<int64_t>& dead,
                        const std::vector<at::Tensor>& leaves, const std::vector<at::Tensor>& output_grads,
                        const Trial& trial);

}  // namespace trainer::recompute
