/// @file A whole training run on a toy model, from ready tensors: what the tests of the loop and of resuming train.
#pragma once

#include <assembly/model_builder.hpp>
#include <atomic>
#include <checkpoint/train_state.hpp>
#include <execution/keyed_random.hpp>
#include <execution/trainer.hpp>
#include <optional>
#include <preparation/ahead_batches.hpp>
#include <string>
#include <support/components.hpp>
#include <support/parity.hpp>
#include <support/toy_model.hpp>
#include <vector>

namespace trainer::execution {

/// `per_step` samples a step, in micro-batches of `micro`; sample k of the run has the key k.
class ToyData final : public BatchSource {
 public:
  ToyData(int64_t per_step, int64_t micro) : per_step_(per_step), micro_(micro) {}
  [[nodiscard]] int64_t micro_batches() const override { return per_step_ / micro_; }
  Batch batch(int64_t step, int64_t micro) override;
  [[nodiscard]] std::vector<std::string> files(int64_t step, int64_t micro) const override;
  int64_t poisoned = -1;              ///< key of a sample whose latents hold a NaN
  std::atomic<int64_t> damaged = -1;  ///< key of a sample that cannot be read; batches may be read on another thread

 private:
  [[nodiscard]] uint64_t key(int64_t step, int64_t micro, int64_t b) const {
    return static_cast<uint64_t>(step * per_step_ + micro * micro_ + b);
  }
  int64_t per_step_, micro_;
};

/// The usual objective; notes the keys and times of what it prepared.
class NotingObjective final : public Objective {
 public:
  [[nodiscard]] std::vector<std::string> provides() const override { return inner_->provides(); }
  [[nodiscard]] Example prepare(const Batch& batch, const Model& model, const Random& random) const override;
  [[nodiscard]] at::Tensor loss(const Example& example, const Prediction& predict) const override {
    return inner_->loss(example, predict);
  }
  mutable std::vector<uint64_t> keys;
  mutable std::vector<double> times;

 private:
  std::unique_ptr<Objective> inner_ = testing::flow_matching();
};

struct ToyHow {
  int64_t per_step = 3, micro = 1;
  bool recompute = false;
  bool full = false;          ///< all parameters are trained, without LoRA
  bool fused = false;         ///< updates in backward
  bool update_first = false;  ///< with it, batches are made ahead, too
  double max_grad_norm = 1.0;
  double ema = 0.9;
  uint64_t seed = 5;
  testing::ToySizes sizes{};
  NamedTensors weights = testing::toy_weights(sizes);
};

/// Everything of a run; construct a second one for a fresh start.
class ToyRun {
 public:
  explicit ToyRun(const ToyHow& how = {}, int64_t first_step = 0);
  /// Steps until `steps` are done; returns the losses.
  std::vector<double> train_to(int64_t steps);
  [[nodiscard]] NamedTensors values() const;
  [[nodiscard]] checkpoint::Live live() { return {trained, *optimizer, ema ? &*ema : nullptr}; }

  test::MemorySource source;
  assembly::SourceBuilder builder;
  testing::ToyModel model;
  std::unique_ptr<Adapter> lora;
  std::vector<Parameter*> trained;
  MemoryStack memory;
  PlacementPlan placement;
  KeyedRandom random;
  ToyData data;
  std::optional<preparation::AheadBatches> ahead;
  NotingObjective objective;
  std::optional<optim::AdamW> optimizer;
  std::optional<optim::FusedBackward> fused;
  std::optional<optim::Ema> ema;
  std::optional<Trainer> trainer;
};

}  // namespace trainer::execution
