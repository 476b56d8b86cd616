/// @file The detectors of the recompute engine: what a block must not do, found on its first run. Private to the SDK.
#pragma once

#include <trainer/sdk/recompute.hpp>

#include "op_region.hpp"

namespace trainer::recompute {

/// Differentiable inputs of one run, flat: carried, shared, parameters. Undefined tensors of the flow are left out.
struct FlatInputs {
  std::vector<at::Tensor> tensors;
  std::vector<std::string> names;  ///< for messages, e.g. "shared[2]" or a parameter's name
};
FlatInputs flatten(const Flow& flow, const std::vector<Parameter*>& parameters);

/// `like` with its defined tensors replaced, in order, by the first elements of `tensors`.
Flow unflatten(const Flow& like, const std::vector<at::Tensor>& tensors);

/// Leaves that share data with `tensors`, each requiring grad as its original does.
std::vector<at::Tensor> alias_leaves(const std::vector<at::Tensor>& tensors);

/// Throws when a graph ending in `outputs` has a leaf that is none of `allowed`. `inputs` name it where they can.
void refuse_foreign_leaves(const Block& block, const std::vector<at::Tensor>& outputs,
                           const std::vector<at::Tensor>& allowed, const FlatInputs& inputs,
                           const RecomputeState* sites);

/// How messages say that a recompute differs from its forward.
inline constexpr const char* kRecompute = "in the recompute";

/// Throws unless count, shapes, dtypes and bits are equal. `when` ends the sentence, e.g. "in the recompute".
void require_equal(const Block& block, const std::vector<at::Tensor>& expected, const std::vector<at::Tensor>& got,
                   bool compare_bits, const std::string& when);

/// Throws unless both runs made the same heavy calls with the same arguments. Says nothing when a block ran inside.
void require_same_calls(const Block& block, const OpTrace& expected, const OpTrace& got, const std::string& when);

/// As bytes, so that equal NaNs are equal and 0.0 differs from -0.0. Shapes and dtypes must be equal.
bool same_bits(const at::Tensor& a, const at::Tensor& b);

/// Versions of tensors, to find in-place changes.
std::vector<int64_t> versions(const std::vector<at::Tensor>& tensors);
void refuse_changed_inputs(const Block& block, const FlatInputs& inputs, const std::vector<int64_t>& before);

/// Throws under torch::autocast: its casts are the surroundings', which a recompute in backward would not have.
void refuse_autocast(const Block& block, const FlatInputs& inputs);

/// Text that is equal exactly for runs that are verified once.
std::string signature(const Block& block, const Flow& flow, const FlatInputs& inputs);

}  // namespace trainer::recompute
