/// @file A training step on shapes alone: the run's own model, strategies, adapter, objective, optimiser and schedule,
/// on meta tensors, with every byte counted. Nothing is computed, no weight is read.
#pragma once

#include <execution/memory_stack.hpp>
#include <optim/adamw.hpp>
#include <planner/block_cost.hpp>
#include <trainer/sdk/objective.hpp>
#include <trainer/sdk/placement.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace trainer::planning {

/// Index of a dry device; that of "meta" is 0.
inline std::size_t dry_index(at::Device device) {
  return static_cast<std::size_t>(std::max<int64_t>(device.index(), 0));
}

/// The other way round.
inline at::Device dry_device(std::size_t index) { return {at::kMeta, static_cast<at::DeviceIndex>(index)}; }

/// Shapes of one micro-batch; every sample has the same.
struct BatchShape {
  int64_t samples = 1;
  std::vector<int64_t> latents;          ///< of one sample, [C, T, h, w]; empty for non-diffusion data
  std::vector<TensorInfo> conditioning;  ///< of one sample, e.g. "prompt_embeds" bf16 [L, J]
};

/// What a dry step runs; borrowed. All tensors of model and adapter are on dry devices, "meta:0", "meta:1", ...; those
/// that the placement names.
struct DryParts {
  Model& model;
  const Objective& objective;
  const execution::MemoryStack& memory;
  const PlacementPlan& placement;
  const std::vector<Parameter*>& trained;
  optim::AdamWOptions optimizer;
  bool ema = false;
  double max_grad_norm = 1.0;
  int64_t micro_batches = 1;
  BatchShape batch;
  at::Device data{at::kMeta, 0};  ///< where batches are made: the host's in a run
  bool fused_backward = false;    ///< as optimizer.fused_backward of a recipe
};

/// Of one device in bytes; exact but for `peak`, in which temporaries inside a kernel may be missing.
struct StepBytes {
  int64_t optimizer = 0, ema = 0;  ///< states, for the life of the run
  int64_t gradients = 0;           ///< of the trained parameters, at the end of the backward; 0 when freed in it
  int64_t kept = 0;  ///< most that forwards have left when a backward begins; of a stage, also what it receives
  int64_t before_blocks = 0;  ///< held when the first micro-batch enters its first block: inputs, targets, prologue
  int64_t passes = 0;         ///< highest in forwards and backwards, above what was there before the step
  int64_t peak = 0;           ///< highest in the step, above what was there before it (weights, parameters, states)
  /// Besides gradients and kept: what the step needs for a while.
  [[nodiscard]] int64_t transient() const { return peak - gradients - kept; }
};

/// One step of the schedule: the floating-point operations of its matrix products, convolutions and attentions.
struct StepWork {
  ScheduleStep step;
  double flops = 0;  ///< a recompute included, before elision
};

struct DryStep {
  std::vector<StepBytes> devices;  ///< by index of the dry device
  std::vector<StepWork> work;      ///< in the order of the schedule
};

/// A block of the chain as its strategies run it.
struct BlockPlan {
  std::string name, type;
  CheckpointOptions options;
  planner::BlockCost cost;
};

/// A step as they come after the first: nothing is verified. On one device that takes micro-batches one after the
/// other, two stand for all: the third finds what the second found. Throws Error (NO_SHAPE_KERNEL) when model,
/// objective or a strategy needs values or an operator without a shape kernel.
DryStep dry_step(const DryParts& parts);

/// The loss of one micro-batch without gradients, as validations and nothing else need it: its floating-point
/// operations. Throws as `dry_step`.
double dry_loss(const DryParts& parts);

/// Every block as the first micro-batch runs it, in order. Blocks that cost the same are run once.
std::vector<BlockPlan> dry_blocks(const DryParts& parts);

}  // namespace trainer::planning
