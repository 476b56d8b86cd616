/// @file See flux2_model.hpp.
#include "flux2_model.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <adapter/inject.hpp>
#include <cstdlib>
#include <execution/forward.hpp>
#include <execution/keyed_random.hpp>
#include <support/components.hpp>
#include <weights/model_files.hpp>

namespace trainer::fp8::testing {
namespace {

constexpr uint64_t kSeed = 3;

at::Tensor numbers(uint64_t key, at::IntArrayRef shape) {
  return execution::keyed_normal(KeyedRng(kSeed, RngStream::noise, 0, key), shape);
}

void fill_lora(const std::vector<Parameter*>& trained) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < trained.size(); ++i)
    trained[i]->value().copy_(numbers(100 + i, trained[i]->value().sizes()) * 0.02);
}

}  // namespace

std::filesystem::path quickstart_transformer() {
  return std::filesystem::path(std::getenv("TRAINER_SOURCE_ROOT")) / "recipes/quickstart/model/transformer";
}

Table fp8_options(const Table& changes) { return options_of("memory", "fp8_weight_only", changes).values(); }

assembly::LoadedModel open_model(const Setting& setting) {
  assembly::LoadedModel loaded;
  std::vector<execution::MemoryStack::Named> strategies;
  if (setting.fp8) strategies.push_back({setting.packing, make_strategy(setting.packing, *setting.fp8)});
  if (setting.recompute) strategies.push_back({"full_checkpointing", make_strategy("full_checkpointing")});
  loaded.memory = execution::MemoryStack(std::move(strategies));
  built_plugins().require("model", "flux2");
  const ModelComponent& component = built_plugins().registry().models.at("flux2");
  const std::shared_ptr<weights::ModelFiles> files = weights::ModelFiles::open(setting.files);
  loaded.source = component.map_weights(files);
  assembly::BuildOptions options;
  options.dtype = setting.dtype;
  options.format = loaded.memory.format();
  assembly::SourceBuilder builder(*loaded.source, options);
  const std::string config = files->config().value_or("");
  loaded.model = component.create(ModelContext{options_of("model", "flux2"), *loaded.source, config, builder});
  loaded.inventory = builder.inventory();
  loaded.adapter = trainer::testing::lora({{"rank", {int64_t{16}}}, {"alpha", {16.0}}});
  loaded.adapted = adapter::targeted(*loaded.adapter, *loaded.model, loaded.inventory.linears);
  loaded.trained = adapter::inject(*loaded.adapter, loaded.adapted, kSeed, at::kCPU);
  fill_lora(loaded.trained);
  return loaded;
}

Result run(assembly::LoadedModel& loaded) {
  Batch batch;
  batch.latents = numbers(1, {2, loaded.model->diffusion()->latent_channels, 1, 8, 8});
  batch.conditioning["prompt_embeds"] = numbers(2, {2, 16, 192});
  batch.sample_keys = {0, 1};
  const auto objective = trainer::testing::flow_matching();
  const Example example = objective->prepare(batch, *loaded.model, execution::KeyedRandom(kSeed));
  Result result;
  result.output = execution::predict(*loaded.model, example.inputs, loaded.memory);
  RecomputeState verified;
  const at::Tensor loss = execution::forward_loss(*loaded.model, *objective, example, loaded.memory, verified, 0);
  loss.backward();
  result.loss = loss.item<double>();
  for (Parameter* parameter : loaded.trained) result.gradients[parameter->name()] = parameter->value().grad();
  return result;
}

at::Tensor joined(const std::map<std::string, at::Tensor>& gradients) {
  std::vector<at::Tensor> flat;
  for (const auto& [name, gradient] : gradients) flat.push_back(gradient.reshape(-1));
  return at::cat(flat);
}

}  // namespace trainer::fp8::testing
