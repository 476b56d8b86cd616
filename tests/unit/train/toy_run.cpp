#include "toy_run.hpp"

#include <ATen/ops/stack.h>

#include <adapter/inject.hpp>
#include <limits>
#include <trainer/sdk/error.hpp>

namespace trainer::execution {
namespace {

assembly::BuildOptions build_options(const ToyHow& how) {
  assembly::BuildOptions options;
  options.trained = how.full;
  return options;
}

MemoryStack memory_of(const ToyHow& how) {
  std::vector<MemoryStack::Named> strategies;
  if (how.recompute) strategies.push_back({"full_checkpointing", std::make_unique<testing::RecomputeAll>()});
  return MemoryStack(std::move(strategies));
}

}  // namespace

Batch ToyData::batch(int64_t step, int64_t micro) {
  Batch batch;
  std::vector<at::Tensor> latents, prompts;
  for (int64_t b = 0; b < micro_; ++b) {
    const uint64_t k = key(step, micro, b);
    if (static_cast<int64_t>(k) == damaged) throw Error(ExitCode::bad_input, "entry is damaged");
    latents.push_back(keyed_normal(KeyedRng(1, RngStream::synthetic, 0, k), {3, 1, 2, 4}));
    if (static_cast<int64_t>(k) == poisoned) latents.back()[1][0][0][2] = std::numeric_limits<float>::quiet_NaN();
    prompts.push_back(keyed_normal(KeyedRng(1, RngStream::synthetic, 1, k), {2, 4}));
    batch.sample_keys.push_back(k);
  }
  batch.latents = at::stack(latents);
  batch.conditioning["prompt_embeds"] = at::stack(prompts);
  batch.step = static_cast<uint64_t>(step);
  return batch;
}

std::vector<std::string> ToyData::files(int64_t step, int64_t micro) const {
  std::vector<std::string> names;
  for (int64_t b = 0; b < micro_; ++b) names.push_back("picture-" + std::to_string(key(step, micro, b)) + ".png");
  return names;
}

Example NotingObjective::prepare(const Batch& batch, const Model& model, const Random& random) const {
  Example example = inner_->prepare(batch, model, random);
  keys.insert(keys.end(), batch.sample_keys.begin(), batch.sample_keys.end());
  times.insert(times.end(), example.times.begin(), example.times.end());
  return example;
}

ToyRun::ToyRun(const ToyHow& how, int64_t first_step)
    : source(how.weights, "toy.safetensors"),
      builder(source, build_options(how)),
      model(builder, how.sizes),
      memory(memory_of(how)),
      placement(testing::one_device(model.blocks().size(), how.per_step / how.micro)),
      random(how.seed),
      data(how.per_step, how.micro) {
  if (how.full) {
    trained = assembly::trained_parameters(builder.inventory());
  } else {
    lora = testing::lora();
    trained = adapter::inject(*lora, adapter::targeted(*lora, model, builder.inventory().linears), how.seed, at::kCPU);
  }
  optimizer.emplace(trained, optim::AdamWOptions{});
  if (how.fused) fused.emplace(*optimizer);
  if (how.ema > 0) ema.emplace(trained, how.ema);
  const optim::LrSchedule schedule{"cosine", 1e-2, 2, 20};
  if (how.update_first) ahead.emplace(data, /*pin=*/false);
  Parts parts{model,
              objective,
              memory,
              placement,
              random,
              ahead ? static_cast<BatchSource&>(*ahead) : data,
              *optimizer,
              ema ? &*ema : nullptr,
              schedule,
              how.max_grad_norm,
              "model and objective",
              fused ? &*fused : nullptr};
  parts.update_first = how.update_first;
  trainer.emplace(std::move(parts), first_step);
}

std::vector<double> ToyRun::train_to(int64_t steps) {
  std::vector<double> losses;
  trainer->fit(steps, [&](const StepReport& report) {
    losses.push_back(report.loss);
    return true;
  });
  return losses;
}

NamedTensors ToyRun::values() const {
  NamedTensors values;
  for (Parameter* parameter : trained) values[parameter->name()] = parameter->value().detach().clone();
  return values;
}

}  // namespace trainer::execution
