/// @file The training of a run: the loaded model with its optimiser, average and batches, and the steps that change
/// them. One step is execution/trainer.hpp's.
#pragma once

#include <assembly/assemble.hpp>
#include <checkpoint/train_state.hpp>
#include <distributed/group.hpp>
#include <execution/keyed_random.hpp>
#include <execution/trainer.hpp>
#include <preparation/ahead_batches.hpp>
#include <run/step_meter.hpp>
#include <run/tested_steps.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trainer::run {

class Training {
 public:
  /// `recipe`, `batches` and `ranks` borrowed. `devices`: where the model is, as placement.devices names them.
  Training(const recipe::Recipe& recipe, assembly::LoadedModel model, std::unique_ptr<Objective> objective,
           execution::BatchSource& batches, const std::vector<at::Device>& devices, distributed::Group& ranks);

  /// Copies a checkpoint's tensors into the model and continues after its step. Before the first step only.
  void restore(const checkpoint::Loaded& found, int64_t step);
  [[nodiscard]] checkpoint::Content capture(const checkpoint::Progress& progress);

  /// One optimiser step. Collective. Throws as Trainer::step.
  execution::StepReport step();
  [[nodiscard]] int64_t steps_done() const { return trainer_ ? trainer_->steps_done() : first_step_; }
  /// Steps that were done before this process.
  [[nodiscard]] int64_t first_step() const { return first_step_; }

  /// The next step tests again which values its recompute may leave out. A checkpoint is made of such a step.
  void test_recompute();
  /// Collective: the last step tested it, or no rank leaves anything out.
  [[nodiscard]] bool may_be_saved();
  /// What each type of block recomputes and keeps; empty before the first step.
  [[nodiscard]] const RecomputeState& recompute() { return trainer().recompute_state(); }
  /// As Trainer::exchange_text.
  [[nodiscard]] std::string exchange_text() { return trainer().exchange_text(); }

  /// The averaged weights are in the model while the result lives; without train.ema_decay nothing changes.
  [[nodiscard]] optim::Averaged averaged() { return optim::Averaged(ema_ ? &*ema_ : nullptr); }
  [[nodiscard]] assembly::LoadedModel& model() { return model_; }
  [[nodiscard]] const assembly::LoadedModel& model() const { return model_; }
  [[nodiscard]] const Objective& objective() const { return *objective_; }
  /// "flux2" with "flow_matching": who is named when a call into them throws.
  [[nodiscard]] const std::string& plugins() const { return plugins_; }
  /// Bytes of the steps on each device; empty before the first step.
  [[nodiscard]] std::vector<StepUse> bytes() const { return meter_ ? meter_->uses() : std::vector<StepUse>(); }

 private:
  [[nodiscard]] at::Device device() const { return devices_.front(); }
  execution::BatchSource& batches();
  checkpoint::Live live() { return {model_.trained, optimizer_, ema_ ? &*ema_ : nullptr}; }
  /// Made when it is first used, after a resume.
  execution::Trainer& trainer();
  [[nodiscard]] execution::Parts parts();

  const recipe::Recipe& recipe_;
  assembly::LoadedModel model_;
  std::unique_ptr<Objective> objective_;
  execution::BatchSource& prepared_;
  std::vector<at::Device> devices_;
  distributed::Group& ranks_;
  std::string plugins_;
  execution::KeyedRandom random_;
  optim::AdamW optimizer_;
  std::optional<optim::FusedBackward> fused_;
  std::optional<optim::Ema> ema_;
  std::optional<preparation::AheadBatches> ahead_;
  int64_t first_step_ = 0;
  std::optional<execution::Trainer> trainer_;
  std::optional<StepMeter> meter_;
  TestedSteps tested_;
};

}  // namespace trainer::run
