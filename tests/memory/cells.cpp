/// @file See cells.hpp.
#include "cells.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/sin.h>

#include <adapter/inject.hpp>
#include <algorithm>
#include <optional>
#include <planner/byte_counter.hpp>
#include <planner/shape_source.hpp>
#include <support/components.hpp>
#include <support/parity.hpp>
#include <support/plugins.hpp>
#include <train/assembly/model_builder.hpp>
#include <train/keyed_random.hpp>
#include <train/trainer.hpp>
#include <utility>
#include <weights/model_files.hpp>

namespace trainer::memory {
namespace {

constexpr uint64_t kSeed = 5;

train::MemoryStack::Named strategy(const std::string& name, const Table& changes = {}) {
  return {name, testing::make_strategy(name, changes)};
}

train::MemoryStack stack_of(const Cell& cell) {
  std::vector<train::MemoryStack::Named> strategies;
  if (cell.fp8) strategies.push_back(strategy("fp8_weight_only"));
  if (cell.checkpointing.starts_with("full"))
    strategies.push_back(strategy("full_checkpointing", {{"elide", {cell.checkpointing == "full+elide"}}}));
  else if (cell.checkpointing != "none")
    strategies.push_back(
        strategy("selective_checkpointing", {{"save", {Array{Value{cell.checkpointing}}}}, {"elide", {false}}}));
  return train::MemoryStack(std::move(strategies));
}

/// A model with what trains it, on one device.
struct Setup {
  train::MemoryStack memory;
  std::shared_ptr<WeightSource> source;
  std::unique_ptr<Model> model;
  train::Inventory inventory;
  std::unique_ptr<Adapter> adapter;
  std::vector<Parameter*> trained;
  std::unique_ptr<Objective> objective;
  PlacementPlan placement;
};

Setup set_up(const Subject& subject, const Cell& cell, at::Device device, Measured& measured) {
  planner::install_byte_counter();
  Setup setup;
  setup.memory = stack_of(cell);
  testing::built_plugins().require("model", "flux2");
  const ModelComponent& component = testing::built_plugins().registry().models.at("flux2");
  const auto file = device.is_meta() ? planner::shapes_of(subject.weights) : subject.weights;
  setup.source = component.map_weights(file);
  train::BuildOptions options;
  options.dtype = cell.dtype;
  options.device = device;
  options.trained = cell.all_parameters;
  options.format = setup.memory.format();
  const planner::PeakMark load(device);
  train::SourceBuilder builder(*setup.source, options);
  setup.model =
      component.create(ModelContext{testing::options_of("model", "flux2"), *setup.source, subject.config, builder});
  setup.inventory = builder.inventory();
  measured.weights = load.held();
  measured.load_peak = load.above();
  if (cell.all_parameters) {
    setup.trained = train::trained_parameters(setup.inventory);
  } else {
    setup.adapter = testing::lora({{"rank", {int64_t{16}}}});
    setup.trained = adapter::inject(
        *setup.adapter, adapter::targeted(*setup.adapter, *setup.model, setup.inventory.linears), kSeed, device);
    measured.trained = load.held() - measured.weights;
  }
  setup.objective = testing::flow_matching();
  setup.placement = testing::one_device(setup.model->blocks().size(), cell.micro_batches);
  setup.placement.prologue = setup.placement.epilogue = device;
  setup.placement.blocks.assign(setup.placement.blocks.size(), device);
  return setup;
}

at::Tensor numbers(uint64_t key, at::IntArrayRef shape) {
  return train::keyed_normal(KeyedRng(kSeed, RngStream::noise, 0, key), shape);
}

class Samples final : public train::BatchSource {
 public:
  Samples(const Subject& subject, const Cell& cell, const Size& size) : subject_(subject), cell_(cell), size_(size) {}
  [[nodiscard]] int64_t micro_batches() const override { return cell_.micro_batches; }
  Batch batch(int64_t step, int64_t micro) override {
    Batch batch;
    batch.step = static_cast<uint64_t>(step);
    for (int64_t i = 0; i < size_.samples; ++i) batch.sample_keys.push_back(static_cast<uint64_t>(micro * 16 + i));
    batch.latents = numbers(batch.sample_keys[0], {size_.samples, subject_.channels, 1, size_.height, size_.width});
    batch.conditioning["prompt_embeds"] =
        numbers(100 + batch.sample_keys[0], {size_.samples, size_.text, subject_.text_width}).to(at::kBFloat16);
    return batch;
  }
  [[nodiscard]] std::vector<std::string> files(int64_t, int64_t) const override { return {"memory"}; }

 private:
  const Subject& subject_;
  const Cell& cell_;
  const Size& size_;
};

int64_t held() { return planner::bytes_in_use(at::kCPU).current; }

int64_t gradient_bytes(const std::vector<Parameter*>& trained) {
  int64_t bytes = 0;
  for (const Parameter* parameter : trained)
    if (parameter->value().grad().defined()) bytes += static_cast<int64_t>(parameter->value().grad().nbytes());
  return bytes;
}

/// Reads the allocator when a backward begins and when the gradients are complete.
class Watched final : public Objective {
 public:
  Watched(const Setup& setup, int64_t micro_batches) : setup_(setup), micro_batches_(micro_batches) {}
  [[nodiscard]] std::vector<std::string> provides() const override { return setup_.objective->provides(); }
  [[nodiscard]] Example prepare(const Batch& batch, const Model& model, const Random& random) const override {
    return setup_.objective->prepare(batch, model, random);
  }
  [[nodiscard]] at::Tensor loss(const Example& example, const Prediction& predict) const override {
    at::Tensor loss = setup_.objective->loss(example, predict);
    loss.register_hook([this](const at::Tensor& grad) {
      kept = std::max(kept, held() - rest - gradient_bytes(setup_.trained));
      return grad;
    });
    return loss;
  }
  int64_t rest = 0;
  mutable int64_t kept = 0;

 private:
  const Setup& setup_;
  int64_t micro_batches_;
};

/// sin-shaped weights, so that nothing overflows.
at::Tensor wave(std::vector<int64_t> shape, double scale) {
  int64_t count = 1;
  for (const int64_t side : shape) count *= side;
  return (at::sin(at::arange(count, at::kFloat) * 0.7) * scale).to(at::kBFloat16).view(shape);
}

}  // namespace

std::string text_of(const Cell& cell) {
  return cell.checkpointing + (cell.fp8 ? " fp8" : "") + (cell.dtype == at::kFloat ? " fp32" : " bf16") +
         (cell.all_parameters ? " all" : " LoRA") + (cell.ema ? " ema" : "") + " x" +
         std::to_string(cell.micro_batches);
}

std::vector<Subject> miniatures() {
  std::vector<Subject> list;
  for (const auto& directory : test::parity_dirs()) {
    const auto folder = directory / "model" / "transformer";
    const auto json = test::file_json(folder / "config.json");
    list.push_back({directory.filename().string(), test::file_text(folder / "config.json"),
                    weights::ModelFiles::open(folder), json["in_channels"].get<int64_t>(),
                    json["joint_attention_dim"].get<int64_t>()});
  }
  return list;
}

Subject hundred_million() {
  constexpr int64_t kDoubles = 2, kSingles = 8, kHidden = 768, kHead = 128, kText = 1024, kChannels = 128;
  NamedTensors tensors;
  const auto linear = [&](const std::string& name, int64_t out, int64_t in) {
    tensors[name + ".weight"] = wave({out, in}, 0.02);
  };
  const auto norm = [&](const std::string& name) { tensors[name + ".weight"] = wave({kHead}, 1.0); };
  linear("x_embedder", kHidden, kChannels);
  linear("context_embedder", kHidden, kText);
  linear("time_guidance_embed.timestep_embedder.linear_1", kHidden, 256);
  linear("time_guidance_embed.timestep_embedder.linear_2", kHidden, kHidden);
  linear("double_stream_modulation_img.linear", 6 * kHidden, kHidden);
  linear("double_stream_modulation_txt.linear", 6 * kHidden, kHidden);
  linear("single_stream_modulation.linear", 3 * kHidden, kHidden);
  linear("norm_out.linear", 2 * kHidden, kHidden);
  linear("proj_out", kChannels, kHidden);
  for (int64_t i = 0; i < kDoubles; ++i) {
    const std::string block = "transformer_blocks." + std::to_string(i) + ".";
    for (const char* layer :
         {"to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"})
      linear(block + "attn." + layer, kHidden, kHidden);
    for (const char* name : {"norm_q", "norm_k", "norm_added_q", "norm_added_k"}) norm(block + "attn." + name);
    for (const char* mlp : {"ff.", "ff_context."}) {
      linear(block + mlp + "linear_in", 6 * kHidden, kHidden);
      linear(block + mlp + "linear_out", kHidden, 3 * kHidden);
    }
  }
  for (int64_t i = 0; i < kSingles; ++i) {
    const std::string block = "single_transformer_blocks." + std::to_string(i) + ".attn.";
    linear(block + "to_qkv_mlp_proj", 9 * kHidden, kHidden);
    linear(block + "to_out", kHidden, 4 * kHidden);
    for (const char* name : {"norm_q", "norm_k"}) norm(block + name);
  }
  return {"100M", "", std::make_shared<test::MemorySource>(std::move(tensors)), kChannels, kText};
}

Measured measure_real(const Subject& subject, const Cell& cell, const Size& size) {
  Measured measured;
  Setup setup = set_up(subject, cell, at::kCPU, measured);
  const int64_t before = held();
  optim::AdamW optimizer(setup.trained, {});
  measured.step.optimizer = held() - before;
  std::optional<optim::Ema> ema;
  if (cell.ema) ema.emplace(setup.trained, 0.99);
  measured.step.ema = held() - before - measured.step.optimizer;
  Samples samples(subject, cell, size);
  const train::KeyedRandom random(kSeed);
  Watched objective(setup, cell.micro_batches);
  optim::LrSchedule schedule;
  schedule.total_steps = 2;
  train::Trainer trainer({*setup.model, objective, setup.memory, setup.placement, random, samples, optimizer,
                          ema ? &*ema : nullptr, schedule, 1.0},
                         0);
  trainer.step();
  objective.rest = held();
  objective.kept = 0;
  const planner::PeakMark mark(at::kCPU);
  trainer.step();
  measured.step.kept = objective.kept;
  measured.step.peak = mark.above();
  for (const Parameter* parameter : setup.trained)
    measured.step.gradients += static_cast<int64_t>(parameter->value().nbytes());
  return measured;
}

Measured measure_dry(const Subject& subject, const Cell& cell, const Size& size,
                     std::vector<train::BlockPlan>* blocks) {
  Measured measured;
  const Setup setup = set_up(subject, cell, at::kMeta, measured);
  train::BatchShape shape{size.samples,
                          {subject.channels, 1, size.height, size.width},
                          {{"prompt_embeds", at::kBFloat16, {size.text, subject.text_width}}}};
  const train::DryParts parts{*setup.model, *setup.objective, setup.memory, setup.placement,    setup.trained,
                              {},           cell.ema,         1.0,          cell.micro_batches, std::move(shape)};
  measured.step = train::dry_step(parts);
  if (blocks != nullptr) *blocks = train::dry_blocks(parts);
  return measured;
}

}  // namespace trainer::memory
