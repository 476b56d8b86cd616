/// @file What the parity tests of training share: the transformer of a parity directory built by the host's builder,
/// and the recorded data, noise and noise levels of lora_train.safetensors behind the loop's own interfaces.
#pragma once

#include <gtest/gtest.h>

#include <assembly/assemble.hpp>
#include <execution/batch_source.hpp>
#include <filesystem>
#include <flux2/model.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <support/parity.hpp>
#include <vector>

namespace trainer::parity {

/// The transformer, with the sinusoids of the machine that made the reference numbers: exp() of fp32 differs in the
/// last bit between CPUs, which an argument of 4000 turns into 1e-4 of the output (see tests/parity/flux2).
class ReferenceTimes final : public Model {
 public:
  /// `frequencies`: undefined keeps the model's own.
  ReferenceTimes(std::unique_ptr<flux2::Flux2Model> model, at::Tensor frequencies)
      : model_(std::move(model)), frequencies_(std::move(frequencies)) {}
  [[nodiscard]] std::vector<InputSpec> inputs() const override { return model_->inputs(); }
  Flow prologue(const NamedTensors& inputs) override;
  std::span<Block* const> blocks() override { return model_->blocks(); }
  at::Tensor epilogue(const Flow& flow) override { return model_->epilogue(flow); }
  [[nodiscard]] const DiffusionTraits* diffusion() const override { return model_->diffusion(); }
  [[nodiscard]] std::vector<std::string> default_targets() const override { return model_->default_targets(); }
  [[nodiscard]] std::string describe() const override { return model_->describe(); }
  [[nodiscard]] bool guided() const { return model_->config().guidance; }

 private:
  std::unique_ptr<flux2::Flux2Model> model_;
  at::Tensor frequencies_;
};

/// Frequencies of the sinusoids as the reference machine rounded them, found from act.time_proj of dit.safetensors.
at::Tensor reference_frequencies(const std::filesystem::path& directory);

/// The transformer of `directory`, frozen, without adapter. Weights are read as the program reads them.
assembly::LoadedModel load_transformer(const std::filesystem::path& directory, at::ScalarType dtype = at::kFloat);

/// Attaches LoRA to `patterns` and copies the tensors "<prefix><layer>.lora_A.weight" of `tensors` into it.
void attach_lora(assembly::LoadedModel& loaded, int64_t rank, double alpha, const std::vector<std::string>& patterns,
                 const NamedTensors& tensors, const std::string& prefix);
/// Copies tensors into the LoRA that is there.
void set_lora(assembly::LoadedModel& loaded, const NamedTensors& tensors, const std::string& prefix);

/// Tokens [B, N, C] on an h x w grid -> latents [B, C, 1, h, w].
at::Tensor latents_of(const at::Tensor& tokens, const nlohmann::json& grid);
inline at::Tensor tokens_of(const at::Tensor& latents) { return latents.flatten(2).transpose(1, 2).contiguous(); }

/// The recorded samples: one micro-batch a step, as many steps as there are.
class RecordedData final : public execution::BatchSource, public Random {
 public:
  /// `sigma`: "data.sigma" or "data.sigma_exact".
  RecordedData(const NamedTensors& tensors, nlohmann::json grid, const std::string& sigma);
  [[nodiscard]] int64_t micro_batches() const override { return 1; }
  Batch batch(int64_t step, int64_t micro) override;
  [[nodiscard]] std::vector<std::string> files(int64_t, int64_t) const override { return {"recorded"}; }
  [[nodiscard]] at::Tensor noise(const Batch& batch, at::IntArrayRef row_shape) const override;
  /// Uniform numbers from which an unshifted uniform distribution makes the recorded noise level.
  [[nodiscard]] std::vector<double> uniform(const Batch& batch, int64_t b, int64_t count) const override;
  [[nodiscard]] std::vector<double> normal(const Batch&, int64_t, int64_t count) const override {
    return std::vector<double>(static_cast<std::size_t>(count));
  }

 private:
  const NamedTensors& tensors_;
  nlohmann::json grid_;
  at::Tensor sigma_;
};

/// Flow matching as recipes make it, but with the recorded guidance, which changes from step to step.
class RecordedObjective final : public Objective {
 public:
  RecordedObjective(const NamedTensors& tensors, const std::string& weighting);
  [[nodiscard]] std::vector<std::string> provides() const override { return inner_->provides(); }
  [[nodiscard]] Example prepare(const Batch& batch, const Model& model, const Random& random) const override;
  [[nodiscard]] at::Tensor loss(const Example& example, const Prediction& predict) const override {
    return inner_->loss(example, predict);
  }

 private:
  std::unique_ptr<Objective> inner_;
  at::Tensor guidance_;  // [steps, B], undefined for models without
};

/// Writes a measured number into the test's report and returns it.
double measured(const std::string& what, double value);

}  // namespace trainer::parity
