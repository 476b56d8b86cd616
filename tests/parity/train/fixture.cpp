#include "fixture.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <adapter/inject.hpp>
#include <algorithm>
#include <cctype>
#include <cmath>
#include <flux2/layout.hpp>
#include <flux2/lora_family.hpp>
#include <support/components.hpp>
#include <weights/model_files.hpp>

namespace trainer::parity {

Flow ReferenceTimes::prologue(const NamedTensors& inputs) {
  if (!frequencies_.defined()) return model_->prologue(inputs);
  const auto encode = [&](const char* name) {
    const auto it = inputs.find(name);
    if (it == inputs.end()) return at::Tensor();
    const at::Tensor angles = (it->second * 1000).unsqueeze(1) * frequencies_;
    return at::cat({angles.cos(), angles.sin()}, 1);
  };
  return model_->embed(inputs, {encode("timestep"), guided() ? encode("guidance") : at::Tensor()});
}

at::Tensor reference_frequencies(const std::filesystem::path& directory) {
  const NamedTensors dit = test::load_tensors(directory / "dit.safetensors");
  const bool guided = dit.contains("act.time_proj.guidance");  // its larger arguments show more
  const at::Tensor times = dit.at(guided ? "in.guidance" : "in.timestep") * 1000;
  const at::Tensor waves = dit.at(guided ? "act.time_proj.guidance" : "act.time_proj.t");
  const int64_t half = waves.size(1) / 2;
  at::Tensor frequencies = at::empty({half}, at::kFloat);
  const auto error_of = [&](float frequency, int64_t i) {
    double error = 0;
    for (int64_t b = 0; b < times.size(0); ++b) {
      const double angle = times[b].item<float>() * frequency;
      error = std::max({error, std::abs(std::cos(angle) - waves[b][i].item<double>()),
                        std::abs(std::sin(angle) - waves[b][half + i].item<double>())});
    }
    return error;
  };
  for (int64_t i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(-std::log(10000.0)) * static_cast<float>(i) / static_cast<float>(half);
    const auto rounded = static_cast<float>(std::exp(static_cast<double>(exponent)));
    float best = rounded;
    for (const float candidate : {std::nextafter(rounded, 0.0F), std::nextafter(rounded, 2.0F)})
      if (error_of(candidate, i) < error_of(best, i)) best = candidate;
    frequencies[i] = best;
  }
  return frequencies;
}

assembly::LoadedModel load_transformer(const std::filesystem::path& directory, at::ScalarType dtype) {
  assembly::LoadedModel loaded;
  const std::shared_ptr<weights::ModelFiles> files =
      weights::ModelFiles::open(directory / "model", {.component = "transformer"});
  loaded.source = flux2::map_weights(files);
  assembly::BuildOptions build;
  build.dtype = dtype;
  assembly::SourceBuilder builder(*loaded.source, build);
  const Options options("model", {{"round_time", {false}}});
  const std::string config = files->config().value_or("");
  auto model = std::make_unique<flux2::Flux2Model>(ModelContext{options, *loaded.source, config, builder});
  // In bf16 the recorded times are exact and the model's own sinusoids are good enough.
  loaded.model = std::make_unique<ReferenceTimes>(
      std::move(model), dtype == at::kFloat ? reference_frequencies(directory) : at::Tensor());
  loaded.inventory = builder.inventory();
  loaded.lora_family = flux2::lora_family();
  return loaded;
}

void attach_lora(assembly::LoadedModel& loaded, int64_t rank, double alpha, const std::vector<std::string>& patterns,
                 const NamedTensors& tensors, const std::string& prefix) {
  loaded.adapter = testing::lora({{"rank", {rank}}, {"alpha", {alpha}}});
  loaded.adapted = adapter::select(loaded.inventory.linears, patterns);
  loaded.trained = adapter::inject(*loaded.adapter, loaded.adapted, 0, at::kCPU);
  set_lora(loaded, tensors, prefix);
}

void set_lora(assembly::LoadedModel& loaded, const NamedTensors& tensors, const std::string& prefix) {
  const at::NoGradGuard no_grad;
  for (Parameter* parameter : loaded.trained) {
    const at::Tensor& given = tensors.at(prefix + parameter->name());
    TORCH_CHECK(given.sizes() == parameter->value().sizes(), parameter->name());
    parameter->value().copy_(given);
  }
}

at::Tensor latents_of(const at::Tensor& tokens, const nlohmann::json& grid) {
  return tokens.transpose(1, 2)
      .reshape({tokens.size(0), tokens.size(2), 1, grid[0].get<int64_t>(), grid[1].get<int64_t>()})
      .contiguous();
}

RecordedData::RecordedData(const NamedTensors& tensors, nlohmann::json grid, const std::string& sigma)
    : tensors_(tensors), grid_(std::move(grid)), sigma_(tensors.at(sigma)) {}

Batch RecordedData::batch(int64_t step, int64_t) {
  Batch batch;
  batch.latents = latents_of(tensors_.at("data.latents")[step], grid_);
  batch.conditioning["prompt_embeds"] = tensors_.at("data.prompt_embeds")[step];
  for (int64_t b = 0; b < batch.latents.size(0); ++b) batch.sample_keys.push_back(static_cast<uint64_t>(b));
  batch.step = static_cast<uint64_t>(step);
  return batch;
}

at::Tensor RecordedData::noise(const Batch& batch, at::IntArrayRef row_shape) const {
  const at::Tensor noise = latents_of(tensors_.at("data.noise")[static_cast<int64_t>(batch.step)], grid_);
  TORCH_CHECK(noise.sizes().slice(1) == row_shape, "the objective asks for noise of another shape");
  return noise;
}

std::vector<double> RecordedData::uniform(const Batch& batch, int64_t b, int64_t count) const {
  TORCH_CHECK(count == 2, "choice and level");
  return {0.5, 1.0 - sigma_[static_cast<int64_t>(batch.step)][b].item<double>()};  // exact: sigma is fp32
}

RecordedObjective::RecordedObjective(const NamedTensors& tensors, const std::string& weighting)
    : inner_(testing::flow_matching({{"timesteps.distribution", {std::string("uniform")}},
                                     {"timesteps.shift", {std::string("none")}},
                                     {"weighting", {weighting}}})) {
  if (const auto it = tensors.find("data.guidance"); it != tensors.end()) guidance_ = it->second;
}

Example RecordedObjective::prepare(const Batch& batch, const Model& model, const Random& random) const {
  Example example = inner_->prepare(batch, model, random);
  TORCH_CHECK(example.inputs.contains("guidance") == guidance_.defined(), "guidance is for dev alone");
  if (guidance_.defined()) example.inputs["guidance"] = guidance_[static_cast<int64_t>(batch.step)];
  return example;
}

double measured(const std::string& what, double value) {
  std::printf("    %-44s %.3g\n", what.c_str(), value);
  return value;
}

}  // namespace trainer::parity
