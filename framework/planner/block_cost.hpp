/// @file What one run of a block costs, measured by running it on shapes alone: the block, its layers and the flow are
/// meta tensors, every byte is counted where it is allocated, nothing is computed.
#pragma once

#include <trainer/sdk/recompute.hpp>

#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace trainer::planner {

/// Bytes are above what was held before the block's forward; its inputs are the caller's.
///
/// A chain adds up: with `before` held when the first block starts, the step's peak in blocks is the largest of
/// before + kept(0) + ... + kept(i-1) + max(forward_peak(i), backward_peak(i) + gradients of blocks after i).
struct BlockCost {
  int64_t kept = 0;           ///< after the forward, until its backward: outputs, and what autograd or recompute keeps
  int64_t forward_peak = 0;   ///< highest in the forward
  int64_t backward_peak = 0;  ///< highest in the backward with its recompute; kept bytes, incoming and new gradients
                              ///< included
  /// The same peaks the first time that it is run: verified, and its dead values looked for. Those above where nothing
  /// is recomputed.
  int64_t first_forward_peak = 0, first_backward_peak = 0;
  int64_t gradients = 0;  ///< left behind: gradients of the block's trained parameters
  double forward_flops = 0;
  double recomputed_flops = 0;        ///< of the heavy calls that the backward runs again, elided ones left out
  double elided_flops = 0;            ///< of those that it need not run (dead_values.hpp); the engine may find more
  double backward_flops = 0;          ///< without the recompute
  int64_t expanded_bytes = 0;         ///< of packed weights once they are expanded for a product
  std::vector<std::string> kept_ops;  ///< kept by a SavePolicy, e.g. "mm#2"
  std::set<std::string> unread_ops;   ///< of these, those that elision would leave out: kept for nothing
};

/// Runs `block` forward and backward as `how` says, and a second time as a first run is. `flow`: meta tensors of one
/// device with the requires_grad bits of the chain (see `detached_flow`); not changed. Installs counter and shape
/// kernels. Throws Error (failed) naming the operator when the block calls one without a shape kernel.
BlockCost measure(Block& block, const Flow& flow, const BlockRun& how);

/// The same tensors as leaves of their own, requires_grad kept: a place of the chain to measure at. `device`: where
/// they are to be.
Flow detached_flow(const Flow& flow, std::optional<at::Device> device = {});

/// What enters every block when the first gets `flow` (meta tensors): their detached flows, in order, each on the dry
/// device of its block.
std::vector<Flow> block_inputs(std::span<Block* const> blocks, const Flow& flow, std::span<const at::Device> devices);

/// Equal for blocks that cost the same when run alike: type, shapes, dtypes and requires_grad bits of inputs and
/// trained parameters.
std::string cost_key(const Block& block, const Flow& flow);

}  // namespace trainer::planner
