/// @file Runs the schedule of a placement: every stage of every micro-batch as a small graph of its own, from one host
/// thread. One device is the case of one stage.
///
/// A stage's outputs are detached and copied to the next stage; its backward starts from the gradients that come back.
/// What that changes in the numbers is nothing, to the bit: the gradient of a tensor that all blocks read goes down the
/// chain of stages, each adding its own part where a single graph would (tests/equivalence; design in
/// docs/adr/0005-stages.md).
#pragma once

#include <execution/memory_stack.hpp>
#include <execution/stages.hpp>
#include <execution/transfers.hpp>
#include <trainer/sdk/objective.hpp>
#include <trainer/sdk/recompute.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trainer::execution {

/// One step's micro-batches as the executor asks for them; called in the order of the schedule.
struct StageInputs {
  std::function<Example(int64_t micro)> example;
  /// Called with the loss (detached) right before the backward of each micro-batch begins; may be empty.
  std::function<void(const at::Tensor& loss)> before_backward;
  /// Called before every step of the schedule; may be empty.
  std::function<void(const ScheduleStep& step)> before_step;
  /// Called in every forward of the schedule before the first block, when the flow is there; may be empty.
  std::function<void(const ScheduleStep& step)> before_blocks{};
};

class StageExecutor {
 public:
  /// All borrowed. `plugins`: who is named when a call into model or objective throws.
  StageExecutor(Model& model, const Objective& objective, const MemoryStack& memory, const PlacementPlan& plan,
                std::string plugins);
  ~StageExecutor();
  StageExecutor(StageExecutor&&) noexcept;

  /// Forward and backward of all micro-batches in the order of the schedule. Adds the gradients of their mean loss to
  /// the parameters' `.grad()`, each stage's in the order of the micro-batches. Returns the losses (detached scalars on
  /// the epilogue's device). A throw leaves nothing behind but gradients.
  std::vector<at::Tensor> run(int64_t micro_batches, const StageInputs& inputs, RecomputeState& state);

  [[nodiscard]] const std::vector<Stage>& stages() const { return stages_; }

 private:
  class Step;
  Model& model_;
  const Objective& objective_;
  const MemoryStack& memory_;
  const PlacementPlan& plan_;
  std::string plugins_;
  std::vector<Stage> stages_;
  Transfers transfers_;
};

}  // namespace trainer::execution
