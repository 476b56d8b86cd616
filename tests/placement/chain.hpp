/// @file A chain of blocks of equal cost, each with one large frozen layer: the proportions of a big transformer in a
/// few kilobytes, run by the stage executor alone.
#pragma once

#include <trainer/sdk/placement.hpp>

#include <execution/stage_executor.hpp>
#include <memory>
#include <vector>

namespace trainer::placement {

struct ChainSizes {
  int64_t tokens = 16, width = 32;
  std::size_t blocks = 56;
};

/// Blocks x -> x + gain * (x W^T) * shared, gain trained; the prologue makes x and shared from trained parameters.
class ChainModel final : public Model {
 public:
  /// Each part on the device that the plan gives it.
  ChainModel(const ChainSizes& sizes, const PlacementPlan& plan);
  [[nodiscard]] std::vector<InputSpec> inputs() const override { return {{"x", "[tokens, width]"}}; }
  Flow prologue(const NamedTensors& inputs) override;
  std::span<Block* const> blocks() override { return borrowed_; }
  at::Tensor epilogue(const Flow& flow) override;
  [[nodiscard]] std::optional<std::vector<std::string>> epilogue_layers() const override {
    return std::vector<std::string>{};
  }
  [[nodiscard]] std::string describe() const override { return "chain"; }
  /// In order: the prologue's, then the blocks'.
  [[nodiscard]] std::vector<Parameter*> trained();

 private:
  ParameterPtr embed_, shared_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Block*> borrowed_;
};

/// Mean square of the prediction, minus a target where there is one.
class SquareObjective final : public Objective {
 public:
  [[nodiscard]] std::vector<std::string> provides() const override { return {"x"}; }
  [[nodiscard]] Example prepare(const Batch&, const Model&, const Random&) const override { return {}; }
  [[nodiscard]] at::Tensor loss(const Example& example, const Prediction& predict) const override;
};

/// One step: losses and gradients on the CPU, in order. `seconds`: the virtual clocks when the last device was done.
std::vector<at::Tensor> run_step(const ChainSizes& sizes, const PlacementPlan& plan, int64_t micro_batches,
                                 bool recompute, double* seconds = nullptr);

/// A plan with these cuts and this schedule, on sim:0, sim:1, ...
PlacementPlan plan_of(const ChainSizes& sizes, const std::vector<std::size_t>& starts,
                      std::vector<ScheduleStep> schedule);

}  // namespace trainer::placement
