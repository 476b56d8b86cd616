/// @file What is trained: an objective turns a batch into model inputs and the model's prediction into a loss.
#pragma once

#include <trainer/sdk/model.hpp>

#include <functional>

namespace trainer {

/// One micro-batch of cached samples, on the device of the prologue.
struct Batch {
  at::Tensor latents;                   ///< clean, normalised [B, C, T, h, w]; undefined for non-diffusion data
  NamedTensors conditioning;            ///< stacked over samples, e.g. {"prompt_embeds": [B, L, J]}
  std::vector<at::Tensor> references;   ///< clean reference latents [B, C, T, h', w'] each, may be empty
  std::vector<uint64_t> sample_keys;    ///< [B] position of each sample in the run's sample order: keys its randomness
  uint64_t step = 0;                    ///< optimiser step
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
  NamedTensors inputs;         ///< for Model::prologue
  NamedTensors targets;        ///< for Objective::loss
  std::vector<double> times;   ///< [B] timesteps, for reports; may be empty
};

class TRAINER_API Objective {
 public:
  virtual ~Objective();
  /// Names this objective puts into `Example::inputs` (besides the conditioning); matched with Model::inputs at check.
  [[nodiscard]] virtual std::vector<std::string> provides() const = 0;
  [[nodiscard]] virtual Example prepare(const Batch& batch, const Model& model, const Random& random) const = 0;
  /// Scalar fp32 loss, mean over the micro-batch. `predict` runs the epilogue; call it once (or over slices).
  [[nodiscard]] virtual at::Tensor loss(const Example& example, const std::function<at::Tensor()>& predict) const = 0;
};

/// Makes the trained add-on of each targeted linear layer.
class TRAINER_API Adapter {
 public:
  virtual ~Adapter();
  /// `state` describes the layer; `uniform(low, high, shape)` gives keyed random fp32 data for it.
  using Init = std::function<at::Tensor(double low, double high, at::IntArrayRef shape)>;
  using InitNormal = std::function<at::Tensor(double mean, double std, at::IntArrayRef shape)>;
  [[nodiscard]] virtual std::unique_ptr<LinearAdapter> attach(const LinearState& state, const Init& uniform,
                                                              const InitNormal& normal) const = 0;
  /// Glob patterns chosen by the recipe, or empty for the model's default.
  [[nodiscard]] virtual std::vector<std::string> targets() const = 0;
  /// Tensors of the portable export of one layer: "<layer>.lora_A.weight", ... in the dtype of the parameters.
  [[nodiscard]] virtual NamedTensors export_layer(const LinearState& state) const = 0;
  /// One line, e.g. "LoRA rank 16, alpha 16".
  [[nodiscard]] virtual std::string describe() const = 0;
};

}  // namespace trainer
