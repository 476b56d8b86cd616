/// @file Exponential moving average of the trained parameters; samples and exports use it when the recipe asks for it.
#pragma once

#include <trainer/sdk/layers.hpp>

namespace trainer::optim {

class Ema {
 public:
  /// Starts at the parameters' present values.
  Ema(std::vector<Parameter*> parameters, double decay);
  /// shadow = decay * shadow + (1 - decay) * value; the decay is min(decay, (1 + n) / (10 + n)) for the n-th update, so
  /// that the first steps are forgotten (as in TensorFlow's ExponentialMovingAverage).
  void update();
  /// Exchanges shadow and parameters; call twice to return.
  void swap();
  /// "<parameter>.ema" and "ema.updates".
  [[nodiscard]] NamedTensors state() const;
  /// Copies a state made by `state()`. Throws Error (bad_input) unless names, shapes and dtypes are the same.
  void load_state(const NamedTensors& state);

 private:
  std::vector<Parameter*> parameters_;
  double decay_;
  std::vector<at::Tensor> shadow_;
  at::Tensor updates_;  ///< int64 scalar
};

/// The averages stand in the model as long as this lives, also when what uses them throws.
class Averaged {
 public:
  /// Borrowed; null: no averages, and nothing happens.
  explicit Averaged(Ema* ema) : ema_(ema) {
    if (ema_ != nullptr) ema_->swap();
  }
  ~Averaged() {
    if (ema_ != nullptr) ema_->swap();
  }
  Averaged(const Averaged&) = delete;
  Averaged& operator=(const Averaged&) = delete;

 private:
  Ema* ema_;
};

}  // namespace trainer::optim
