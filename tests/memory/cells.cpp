/// @file See cells.hpp.
#include "cells.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/sin.h>

#include <adapter/inject.hpp>
#include <algorithm>
#include <assembly/model_builder.hpp>
#include <assembly/part_costs.hpp>
#include <deque>
#include <execution/keyed_random.hpp>
#include <execution/trainer.hpp>
#include <optional>
#include <planner/byte_counter.hpp>
#include <planner/shape_source.hpp>
#include <set>
#include <support/components.hpp>
#include <support/parity.hpp>
#include <support/plugins.hpp>
#include <utility>
#include <weights/model_files.hpp>

namespace trainer::memory {
namespace {

constexpr uint64_t kSeed = 5;

execution::MemoryStack::Named strategy(const std::string& name, const Table& changes = {}) {
  return {name, testing::make_strategy(name, changes)};
}

execution::MemoryStack stack_of(const Cell& cell) {
  std::vector<execution::MemoryStack::Named> strategies;
  if (cell.packing.ends_with("w8a8"))
    strategies.push_back(strategy(cell.packing));
  else if (!cell.packing.empty())
    strategies.push_back(strategy("fp8_weight_only",
                                  {{"keep", {cell.packing == "fp8 keep" ? std::string("block") : std::string("none")}},
                                   {"granularity", {std::string(cell.packing == "fp8 block" ? "block" : "channel")}}}));
  const std::string how = cell.checkpointing.substr(0, cell.checkpointing.find('+'));
  const bool elide = how != cell.checkpointing;
  if (how == "full")
    strategies.push_back(strategy("full_checkpointing", {{"elide", {elide}}}));
  else if (how != "none")
    strategies.push_back(strategy("selective_checkpointing", {{"save", {Array{Value{how}}}}, {"elide", {elide}}}));
  return execution::MemoryStack(std::move(strategies));
}

/// A model with what trains it.
struct Setup {
  execution::MemoryStack memory;
  std::shared_ptr<WeightSource> source;
  PlacementPlan placement;
  execution::LayerDevices devices;
  std::unique_ptr<Model> model;
  assembly::Inventory inventory;
  std::unique_ptr<Adapter> adapter;
  std::vector<Parameter*> trained;
  std::unique_ptr<Objective> objective;
};

PlacementPlan placed(const PlacementRequest& request) {
  const std::string name = request.devices.size() == 1 ? "single" : "split";
  testing::built_plugins().require("placement", name);
  return testing::built_plugins()
      .registry()
      .placements.at(name)
      .create(testing::options_of("placement", name))
      ->plan(request);
}

/// What is held on each of some devices.
class Held {
 public:
  explicit Held(Devices devices) : devices_(devices), before_(devices.size()) { take(); }
  /// Since the last call, or since construction.
  std::vector<int64_t> take() {
    std::vector<int64_t> more;
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      more.push_back(since(i));
      before_[i] += more.back();
    }
    return more;
  }
  [[nodiscard]] int64_t since(std::size_t device) const {
    return planner::bytes_in_use(devices_[device]).current - before_[device];
  }

 private:
  Devices devices_;
  std::vector<int64_t> before_;
};

Setup set_up(const Subject& subject, const Cell& cell, Devices devices, std::vector<Measured>& measured) {
  planner::install_byte_counter();
  Setup setup;
  setup.memory = stack_of(cell);
  testing::built_plugins().require("model", "flux2");
  const ModelComponent& component = testing::built_plugins().registry().models.at("flux2");
  const auto file = devices.front().is_meta() ? planner::shapes_of(subject.weights) : subject.weights;
  setup.source = component.map_weights(file);
  const Options none = testing::options_of("model", "flux2");
  const auto build = [&](assembly::SourceBuilder& builder) {
    setup.model = component.create(ModelContext{none, *setup.source, subject.config, builder});
    setup.inventory = builder.inventory();
  };
  assembly::BuildOptions options;
  options.dtype = cell.dtype;
  options.device = devices.front();
  options.trained = cell.all_parameters;
  options.headers_only = true;
  options.format = setup.memory.format();
  assembly::SourceBuilder headers(*setup.source, options);
  build(headers);
  PlacementRequest request = assembly::placement_request(*setup.model, setup.inventory, *setup.source, options);
  request.devices.assign(devices.begin(), devices.end());
  request.micro_batches = cell.micro_batches;
  setup.placement = placed(request);
  setup.devices = execution::LayerDevices(*setup.model, setup.placement, "split");
  options.headers_only = false;
  options.device_of = [&setup](const std::string& name) { return setup.devices.of(name); };
  Held held(devices);
  std::deque<planner::PeakMark> marks;
  for (const at::Device device : devices) marks.emplace_back(device);
  assembly::SourceBuilder builder(*setup.source, options);
  setup.inventory = {};
  build(builder);
  measured.resize(devices.size());
  const std::vector<int64_t> weights = held.take();
  for (std::size_t i = 0; i < devices.size(); ++i) {
    measured[i].weights = weights[i];
    measured[i].load_peak = marks[i].above();
  }
  if (cell.all_parameters) {
    setup.trained = assembly::trained_parameters(setup.inventory);
  } else {
    setup.adapter = testing::lora({{"rank", {int64_t{16}}}});
    setup.trained =
        adapter::inject(*setup.adapter, adapter::targeted(*setup.adapter, *setup.model, setup.inventory.linears), kSeed,
                        options.device_of);
    const std::vector<int64_t> trained = held.take();
    for (std::size_t i = 0; i < devices.size(); ++i) measured[i].trained = trained[i];
  }
  setup.objective = testing::flow_matching();
  return setup;
}

at::Tensor numbers(uint64_t key, at::IntArrayRef shape) {
  return execution::keyed_normal(KeyedRng(kSeed, RngStream::noise, 0, key), shape);
}

class Samples final : public execution::BatchSource {
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

int64_t gradient_bytes(const std::vector<Parameter*>& trained, at::Device device) {
  int64_t bytes = 0;
  for (const Parameter* parameter : trained)
    if (parameter->value().grad().defined() && parameter->value().device() == device)
      bytes += static_cast<int64_t>(parameter->value().grad().nbytes());
  return bytes;
}

/// sin-shaped weights, so that nothing overflows.
at::Tensor wave(std::vector<int64_t> shape, double scale) {
  int64_t count = 1;
  for (const int64_t side : shape) count *= side;
  return (at::sin(at::arange(count, at::kFloat) * 0.7) * scale).to(at::kBFloat16).view(shape);
}

}  // namespace

std::string text_of(const Cell& cell) {
  return cell.checkpointing + (cell.packing.empty() ? "" : " " + cell.packing) +
         (cell.dtype == at::kFloat ? " fp32" : " bf16") + (cell.all_parameters ? " all" : " LoRA") +
         (cell.ema ? " ema" : "") + " x" + std::to_string(cell.micro_batches);
}

std::vector<Cell> every_cell() {
  std::vector<Cell> list;
  for (const char* how :
       {"none", "full", "full+elide", "attention", "attention+elide", "every_second_matmul", "matmul"})
    for (const bool all : {false, true})
      for (const char* packing : {"", "fp8"})
        for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
          for (const int64_t micros : {1, 3})
            if (!(all && *packing != 0)) list.push_back({how, packing, dtype, all, micros});
  for (const char* how : {"none", "full", "full+elide", "attention+elide"})
    for (const char* packing : {"fp8 keep", "fp8 block", "fp8_w8a8", "int8_w8a8"})
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
        if (how != std::string("none") || packing != std::string("fp8 keep")) list.push_back({how, packing, dtype});
  return list;
}

std::vector<Cell> covering_cells() {
  const auto choices = [](const Cell& cell) {
    const std::string trained = cell.all_parameters ? "all" : cell.packing.empty() ? "LoRA" : cell.packing;
    const std::string dtype = cell.dtype == at::kFloat ? "fp32" : "bf16", micros = std::to_string(cell.micro_batches);
    if (trained.size() > 4) return std::set<std::string>{trained};  // packed otherwise than "fp8"
    return std::set<std::string>{cell.checkpointing, trained + dtype, trained + micros, dtype + micros};
  };
  std::set<std::string> open;
  std::vector<Cell> every = every_cell(), chosen;
  for (const Cell& cell : every) open.merge(choices(cell));
  while (!open.empty()) {
    const auto news = [&](const Cell& cell) {
      const std::set<std::string> own = choices(cell);
      return std::count_if(own.begin(), own.end(), [&](const std::string& one) { return open.contains(one); });
    };
    const auto best =
        std::max_element(every.begin(), every.end(), [&](const Cell& a, const Cell& b) { return news(a) < news(b); });
    chosen.push_back(*best);
    for (const std::string& one : choices(*best)) open.erase(one);
  }
  return chosen;
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

Subject made_up(int64_t hidden) {
  constexpr int64_t kDoubles = 2, kSingles = 8, kHead = 128, kText = 1024, kChannels = 128;
  NamedTensors tensors;
  const auto linear = [&](const std::string& name, int64_t out, int64_t in) {
    tensors[name + ".weight"] = wave({out, in}, 0.02);
  };
  const auto norm = [&](const std::string& name) { tensors[name + ".weight"] = wave({kHead}, 1.0); };
  linear("x_embedder", hidden, kChannels);
  linear("context_embedder", hidden, kText);
  linear("time_guidance_embed.timestep_embedder.linear_1", hidden, 256);
  linear("time_guidance_embed.timestep_embedder.linear_2", hidden, hidden);
  linear("double_stream_modulation_img.linear", 6 * hidden, hidden);
  linear("double_stream_modulation_txt.linear", 6 * hidden, hidden);
  linear("single_stream_modulation.linear", 3 * hidden, hidden);
  linear("norm_out.linear", 2 * hidden, hidden);
  linear("proj_out", kChannels, hidden);
  for (int64_t i = 0; i < kDoubles; ++i) {
    const std::string block = "transformer_blocks." + std::to_string(i) + ".";
    for (const char* layer :
         {"to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"})
      linear(block + "attn." + layer, hidden, hidden);
    for (const char* name : {"norm_q", "norm_k", "norm_added_q", "norm_added_k"}) norm(block + "attn." + name);
    for (const char* mlp : {"ff.", "ff_context."}) {
      linear(block + mlp + "linear_in", 6 * hidden, hidden);
      linear(block + mlp + "linear_out", hidden, 3 * hidden);
    }
  }
  for (int64_t i = 0; i < kSingles; ++i) {
    const std::string block = "single_transformer_blocks." + std::to_string(i) + ".attn.";
    linear(block + "to_qkv_mlp_proj", 9 * hidden, hidden);
    linear(block + "to_out", hidden, 4 * hidden);
    for (const char* name : {"norm_q", "norm_k"}) norm(block + name);
  }
  return {"made up", "", std::make_shared<test::MemorySource>(std::move(tensors)), kChannels, kText};
}

std::vector<Measured> measure_real(const Subject& subject, const Cell& cell, const Size& size, Devices devices,
                                   const std::function<void(const ScheduleStep&)>& before_step) {
  std::vector<Measured> measured;
  Setup setup = set_up(subject, cell, devices, measured);
  Held held(devices);
  optim::AdamW optimizer(setup.trained, {});
  const std::vector<int64_t> states = held.take();
  std::optional<optim::Ema> ema;
  if (cell.ema) ema.emplace(setup.trained, 0.99);
  const std::vector<int64_t> averages = held.take();
  Samples samples(subject, cell, size);
  const execution::KeyedRandom random(kSeed);
  optim::LrSchedule schedule;
  schedule.total_steps = 2;
  execution::Parts parts{*setup.model, *setup.objective, setup.memory,          setup.placement, random,
                         samples,      optimizer,        ema ? &*ema : nullptr, schedule,        1.0};
  const std::vector<execution::Stage> stages = execution::stages_of(setup.placement);
  std::vector<int64_t> kept(devices.size());  // most when a backward begins, beyond what is held between steps
  parts.before_step = [&](const ScheduleStep& step) {
    const at::Device device = stages[static_cast<std::size_t>(step.stage)].device;
    const auto i = static_cast<std::size_t>(std::find(devices.begin(), devices.end(), device) - devices.begin());
    if (before_step) before_step(step);
    if (step.pass == Pass::backward) kept[i] = std::max(kept[i], held.since(i) - gradient_bytes(setup.trained, device));
  };
  execution::Trainer trainer(std::move(parts), 0);
  std::vector<int64_t> first;
  {
    std::deque<planner::PeakMark> marks;
    for (const at::Device device : devices) marks.emplace_back(device);
    trainer.step();
    for (const planner::PeakMark& mark : marks) first.push_back(mark.above());
  }
  held.take();
  kept.assign(devices.size(), 0);
  std::deque<planner::PeakMark> marks;
  for (const at::Device device : devices) marks.emplace_back(device);
  trainer.step();
  for (std::size_t i = 0; i < devices.size(); ++i) {
    planning::StepBytes& step = measured[i].step;
    step.optimizer = states[i];
    step.ema = averages[i];
    step.kept = kept[i];
    step.peak = marks[i].above();
    measured[i].first_peak = first[i];
    for (const Parameter* parameter : setup.trained)
      if (parameter->value().device() == devices[i])
        step.gradients += static_cast<int64_t>(parameter->value().nbytes());
  }
  return measured;
}

std::vector<Measured> measure_dry(const Subject& subject, const Cell& cell, const Size& size, std::size_t devices,
                                  std::vector<planning::BlockPlan>* blocks) {
  std::vector<at::Device> dry;
  for (std::size_t i = 0; i < devices; ++i) dry.emplace_back(at::kMeta, static_cast<at::DeviceIndex>(i));
  std::vector<Measured> measured;
  const Setup setup = set_up(subject, cell, dry, measured);
  planning::BatchShape shape{size.samples,
                             {subject.channels, 1, size.height, size.width},
                             {{"prompt_embeds", at::kBFloat16, {size.text, subject.text_width}}}};
  // Batches are the host's, which is a device of its own unless the model is there too.
  const at::Device host(at::kMeta, static_cast<at::DeviceIndex>(devices == 1 ? 0 : devices));
  const planning::DryParts parts{*setup.model, *setup.objective, setup.memory, setup.placement,    setup.trained,
                                 {},           cell.ema,         1.0,          cell.micro_batches, std::move(shape),
                                 host};
  const planning::DryStep step = planning::dry_step(parts);
  planning::BlockCosts costs;
  const std::vector<planning::BlockPlan> each = planning::dry_blocks(parts);
  for (const planning::BlockPlan& block : each) costs.push_back({block.cost});
  const auto first =
      planning::first_passes(setup.placement, costs, std::vector<std::size_t>(costs.size(), 0), step.devices);
  for (std::size_t i = 0; i < devices; ++i) {
    measured[i].step = step.devices.at(i);
    measured[i].first_peak = std::max(first.at(i), measured[i].step.peak);
  }
  if (blocks != nullptr) *blocks = each;
  return measured;
}

Measured measure_real(const Subject& subject, const Cell& cell, const Size& size) {
  const at::Device host = at::kCPU;
  return measure_real(subject, cell, size, Devices(&host, 1)).front();
}

Measured measure_dry(const Subject& subject, const Cell& cell, const Size& size,
                     std::vector<planning::BlockPlan>* blocks) {
  return measure_dry(subject, cell, size, 1, blocks).front();
}

}  // namespace trainer::memory
