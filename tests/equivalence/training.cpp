/// @file See training.hpp.
#include "training.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>

#include <adapter/inject.hpp>
#include <stdexcept>
#include <support/components.hpp>
#include <support/parity.hpp>
#include <train/keyed_random.hpp>
#include <train/model_builder.hpp>
#include <train/trainer.hpp>
#include <weights/model_files.hpp>

namespace trainer::equivalence {
namespace {

constexpr int64_t kSamples = 3, kHeight = 4, kWidth = 6, kText = 5;
constexpr uint64_t kSeed = 11;

struct Interruption : std::runtime_error {
  using std::runtime_error::runtime_error;
};

at::Tensor numbers(uint64_t key, at::IntArrayRef shape) {
  return train::keyed_normal(KeyedRng(kSeed, RngStream::noise, 0, key), shape);
}

NamedTensors toy_weights() {
  constexpr int64_t kWide = 16, kChannels = 4;
  NamedTensors tensors{{"embed.weight", numbers(1, {kWide, kChannels}) * 0.3},
                       {"embed.bias", numbers(2, {kWide}) * 0.1},
                       {"time_embed.weight", numbers(3, {kWide, kWide}) * 0.2},
                       {"modulation.weight", numbers(4, {3 * kWide, kWide}) * 0.2},
                       {"out.weight", numbers(5, {kChannels, kWide}) * 0.2}};
  for (uint64_t i = 0; i < 4; ++i) {
    const std::string block = "blocks." + std::to_string(i);
    tensors[block + ".up.weight"] = numbers(10 * i + 6, {2 * kWide, kWide}) * 0.2;
    tensors[block + ".down.weight"] = numbers(10 * i + 7, {kWide, 2 * kWide}) * 0.2;
    tensors[block + ".scale"] = at::ones({kWide});
  }
  return tensors;
}

Options defaults(const plugin::Manifest& manifest) {
  Table values;
  for (const recipe::OptionSpec& option : manifest.schema.options) values[option.key] = option.fallback;
  for (const recipe::OptionSpec& option : manifest.schema.options)
    if (!option.same_as.empty()) values[option.key] = values[option.same_as];
  return {manifest.schema.name, std::move(values)};
}

const plugin::Manifest* manifest_of(const plugin::Loader& loader, const std::string& kind, const std::string& name) {
  for (const plugin::Manifest& manifest : loader.found().manifests)
    if (manifest.schema.kind == kind && manifest.schema.name == name) return &manifest;
  return nullptr;
}

std::unique_ptr<MemoryStrategy> strategy_of(plugin::Loader& loader, const std::string& name) {
  loader.require("memory", name);
  return loader.registry().memory.at(name).create(defaults(*manifest_of(loader, "memory", name)));
}

/// The parameters that a setting trains, adapters hung on the layers where it has them.
std::vector<Parameter*> trained_of(const Setting& setting, const Model& model, const train::Inventory& inventory) {
  if (setting.trained == Trained::all) return train::trained_parameters(inventory);
  const auto adapter = testing::lora();
  const std::vector<std::string> patterns = setting.trained == Trained::default_targets
                                                ? model.default_targets()
                                                : std::vector<std::string>{"*modulation*", "*time*embed*"};
  return adapter::inject(*adapter, adapter::select(inventory.linears, patterns), kSeed, at::kCPU);
}

}  // namespace

std::vector<Subject> subjects(plugin::Loader& loader) {
  std::vector<Subject> list{{"toy", "toy", "", [] { return std::make_shared<test::MemorySource>(toy_weights()); },
                             [](uint64_t) { return NamedTensors{}; }}};
  if (manifest_of(loader, "model", "flux2") == nullptr) return list;
  for (const auto& directory : test::parity_dirs()) {
    const auto folder = directory / "model" / "transformer";
    const int64_t width = test::file_json(folder / "config.json")["joint_attention_dim"].get<int64_t>();
    list.push_back({"flux2 " + directory.filename().string(), "flux2", test::file_text(folder / "config.json"),
                    [folder] { return weights::ModelFiles::open(folder); },
                    [width](uint64_t key) {
                      return NamedTensors{{"prompt_embeds", numbers(1000 + key, {kText, width})}};
                    }});
  }
  return list;
}

std::string text_of(Trained trained) {
  const char* const texts[] = {"LoRA, default targets", "LoRA, modulation and time embedder", "all parameters"};
  return texts[static_cast<int>(trained)];
}
std::string text_of(const Setting& setting) {
  return setting.subject.name + " | " + (setting.dtype == at::kFloat ? "fp32" : "bf16") + " | " +
         text_of(setting.trained) + " | " + std::to_string(setting.micro_batches);
}

std::size_t Trajectory::gradient_count() const {
  std::size_t count = 0;
  for (const auto& [name, list] : gradients) count += list.size();
  return count;
}

std::string difference(const Trajectory& a, const Trajectory& b) {
  if (a.losses != b.losses) return "losses";
  if (a.gradients.size() != b.gradients.size()) return "number of trained tensors";
  for (const auto& [name, list] : a.gradients) {
    const auto other = b.gradients.find(name);
    if (other == b.gradients.end() || other->second.size() != list.size()) return "number of gradients of " + name;
    for (std::size_t i = 0; i < list.size(); ++i)
      if (!test::same_bits(list[i], other->second[i])) return "gradient " + std::to_string(i) + " of " + name;
  }
  for (const auto& [name, weight] : a.weights)
    if (!test::same_bits(weight, b.weights.at(name))) return "weight " + name;
  return "";
}

Samples::Samples(const Setting& setting, int64_t channels)
    : micro_batches_(setting.micro_batches), channels_(channels), conditioning_(setting.subject.conditioning) {}

Batch Samples::batch(int64_t step, int64_t micro) {
  if (micro == fail_at_micro) {
    fail_at_micro = -1;
    throw Interruption("no sample");
  }
  Batch batch;
  batch.step = static_cast<uint64_t>(step);
  std::vector<at::Tensor> latents;
  std::map<std::string, std::vector<at::Tensor>> rows;
  const int64_t size = kSamples / micro_batches_;
  for (int64_t i = micro * size; i < (micro + 1) * size; ++i) {
    const auto key = static_cast<uint64_t>(step * kSamples + i);
    batch.sample_keys.push_back(key);
    latents.push_back(numbers(500 + key, {channels_, 1, kHeight, kWidth}));
    for (const auto& [name, row] : conditioning_(key)) rows[name].push_back(row);
  }
  batch.latents = at::stack(latents);
  for (const auto& [name, list] : rows) batch.conditioning[name] = at::stack(list);
  return batch;
}

train::MemoryStack stack_of(plugin::Loader& loader, const std::vector<std::string>& names) {
  std::vector<train::MemoryStack::Named> strategies;
  for (const std::string& name : names) strategies.push_back({name, strategy_of(loader, name)});
  return train::MemoryStack(std::move(strategies));
}

std::vector<std::string> memory_strategies(const plugin::Loader& loader) {
  std::vector<std::string> names;
  for (const plugin::Manifest& manifest : loader.found().manifests)
    if (manifest.schema.kind == "memory") names.push_back(manifest.schema.name);
  return names;
}

std::vector<std::string> packing(plugin::Loader& loader, const std::vector<std::string>& names) {
  std::vector<std::string> packing;
  for (const std::string& name : names)
    if (strategy_of(loader, name)->weight_format() != nullptr) packing.push_back(name);
  return packing;
}

Trajectory train_three_steps(plugin::Loader& loader, const Setting& setting, const train::MemoryStack& memory,
                             int64_t fail_at_micro) {
  loader.require("model", setting.subject.component);
  loader.require("placement", "single");
  const ModelComponent& component = loader.registry().models.at(setting.subject.component);
  std::shared_ptr<WeightSource> source = setting.subject.open();
  if (component.map_weights != nullptr) source = component.map_weights(source);
  train::BuildOptions options;
  options.dtype = setting.dtype;
  options.trained = setting.trained == Trained::all;
  options.format = memory.format();
  train::SourceBuilder builder(*source, options);
  const Options model_options = defaults(*manifest_of(loader, "model", setting.subject.component));
  const auto model = component.create(ModelContext{model_options, *source, setting.subject.config, builder});
  const std::vector<Parameter*> trained = trained_of(setting, *model, builder.inventory());

  Trajectory trajectory;
  for (Parameter* parameter : trained)
    parameter->value().register_hook([&trajectory, parameter](const at::Tensor& grad) {
      trajectory.gradients[parameter->name()].push_back(grad.clone());
    });
  PlacementRequest request;
  for (const Block* block : model->blocks()) request.block_names.push_back(block->info().name);
  request.micro_batches = setting.micro_batches;
  request.devices = {at::kCPU};
  const PlacementPlan placement = loader.registry().placements.at("single").create(Options())->plan(request);
  if (memory.residency() != nullptr) memory.residency()->plan(model->blocks());
  const auto objective = testing::flow_matching();
  const train::KeyedRandom random(kSeed);
  Samples samples(setting, model->diffusion()->latent_channels);
  optim::AdamW optimizer(trained, {});
  optim::LrSchedule schedule;
  schedule.lr = 1e-2;
  schedule.total_steps = 3;
  train::Trainer trainer({*model, *objective, memory, placement, random, samples, optimizer, nullptr, schedule, 1.0},
                         0);
  for (int step = 0; step < 3; ++step) {
    samples.fail_at_micro = fail_at_micro;
    const auto before = trajectory.gradients;
    try {
      trajectory.losses.push_back(trainer.step().loss);
    } catch (const Interruption&) {
      trajectory.gradients = before;
      trajectory.losses.push_back(trainer.step().loss);
    }
  }
  for (Parameter* parameter : trained) trajectory.weights[parameter->name()] = parameter->value().detach().clone();
  return trajectory;
}

}  // namespace trainer::equivalence
