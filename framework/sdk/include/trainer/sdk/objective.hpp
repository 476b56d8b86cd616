/// @file What is trained: an objective turns a batch into model inputs and the model's prediction into a loss.
#pragma once

#include <trainer/sdk/model.hpp>

#include <concepts>
#include <functional>
#include <utility>

namespace trainer {

/// One micro-batch of cached samples, on the device of the prologue.
struct Batch {
  at::Tensor latents;                  ///< clean, normalised [B, C, T, h, w]; undefined for non-diffusion data
  NamedTensors conditioning;           ///< stacked over samples, e.g. {"prompt_embeds": [B, L, J]}
  std::vector<at::Tensor> references;  ///< clean reference latents [B, C, T, h', w'] each, may be empty
  std::vector<uint64_t> sample_keys;   ///< [B] position of each sample in the run's sample order: keys its randomness
  uint64_t step = 0;                   ///< optimiser step
};

/// Keyed randomness: every value is a function of (seed, purpose, step, sample key).
class TRAINER_API Random {
 public:
  virtual ~Random();
  /// Standard normal [B, shape...] fp32 on the CPU, row b drawn from the key of sample b.
  [[nodiscard]] virtual at::Tensor noise(const Batch& batch, at::IntArrayRef row_shape) const = 0;
  /// `count` uniform numbers in [0, 1) for sample b of the batch, for timesteps.
  [[nodiscard]] virtual std::vector<double> uniform(const Batch& batch, int64_t b, int64_t count) const = 0;
  /// `count` standard normals for sample b, for timesteps; independent of `uniform`.
  [[nodiscard]] virtual std::vector<double> normal(const Batch& batch, int64_t b, int64_t count) const = 0;
};

/// What one forward needs.
struct Example {
  NamedTensors inputs;        ///< for Model::prologue
  NamedTensors targets;       ///< for Objective::loss
  std::vector<double> times;  ///< [B] timesteps, for reports; may be empty
};

/// The model's epilogue as an objective calls it: the whole prediction, or slices of its last dimension.
class Prediction {
 public:
  using Whole = std::function<at::Tensor()>;
  using Sliced = std::function<at::Tensor(int64_t begin, int64_t end)>;
  Prediction(Whole whole, Sliced sliced) : whole_(std::move(whole)), sliced_(std::move(sliced)) {}
  /// Of a function that gives the whole; slices are cut from it.
  template <std::invocable F>
  Prediction(F whole) : Prediction(Whole(whole), [whole](int64_t b, int64_t e) { return whole().slice(-1, b, e); }) {}
  /// Of a model after its blocks; both are borrowed.
  Prediction(Model& model, const Flow& flow)
      : Prediction([&] { return model.epilogue(flow); },
                   [&](int64_t begin, int64_t end) { return model.epilogue_slice(flow, begin, end); }) {}
  [[nodiscard]] at::Tensor operator()() const { return whole_(); }
  [[nodiscard]] at::Tensor slice(int64_t begin, int64_t end) const { return sliced_(begin, end); }

 private:
  Whole whole_;
  Sliced sliced_;
};

class TRAINER_API Objective {
 public:
  virtual ~Objective();
  /// Names this objective puts into `Example::inputs` (besides the conditioning); matched with Model::inputs at check.
  [[nodiscard]] virtual std::vector<std::string> provides() const = 0;
  [[nodiscard]] virtual Example prepare(const Batch& batch, const Model& model, const Random& random) const = 0;
  /// Scalar fp32 loss, mean over the micro-batch. `predict` runs the epilogue: call it once, or once a slice.
  [[nodiscard]] virtual at::Tensor loss(const Example& example, const Prediction& predict) const = 0;
};

}  // namespace trainer
