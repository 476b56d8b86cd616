#include <ATen/core/Tensor.h>
#include <adapter/lora.hpp>
#include <adapter/lora_file.hpp>
#include <run/export.hpp>
#include <weights/convert.hpp>
#include <weights/write.hpp>

#include <map>

namespace trainer::run {
namespace {

constexpr std::string_view kDown = ".lora_A.weight", kUp = ".lora_B.weight";
using Pairs = std::vector<std::pair<std::string, at::Tensor>>;

Pairs model_tensors(const assembly::LoadedModel& loaded) {
  Pairs tensors;
  for (Parameter* parameter : loaded.trained) {
    // The files that other programs read have the dtype of the original.
    const TensorInfo* stored = loaded.source->find(parameter->name());
    const at::ScalarType dtype = stored != nullptr ? stored->dtype : at::kFloat;
    tensors.emplace_back(parameter->name(), parameter->value().detach().to(dtype));
  }
  return tensors;
}

Pairs adapter_tensors(const assembly::LoadedModel& loaded) {
  Pairs tensors;
  for (const Linear& layer : loaded.adapted)
    for (auto& [name, tensor] : loaded.adapter->export_layer(layer.state())) tensors.emplace_back(name, tensor);
  return tensors;
}

/// The pairs of a LoRA; empty when the adapter is of another kind.
std::vector<LoraLayer> lora_layers(const Pairs& tensors) {
  std::map<std::string, LoraLayer> layers;
  for (const auto& [name, tensor] : tensors) {
    const bool down = name.ends_with(kDown);
    if (!down && !name.ends_with(kUp)) return {};
    const std::string layer = name.substr(0, name.size() - (down ? kDown : kUp).size());
    layers[layer].layer = layer;
    (down ? layers[layer].down : layers[layer].up) = tensor;
  }
  std::vector<LoraLayer> list;
  for (auto& [name, layer] : layers) {
    if (!layer.down.defined() || !layer.up.defined()) return {};
    layer.alpha = static_cast<double>(layer.rank());
    list.push_back(std::move(layer));
  }
  return list;
}

void write_tensors(const std::filesystem::path& file, const Pairs& tensors, int64_t step) {
  for (const auto& [name, tensor] : tensors)
    if (!weights::all_finite(tensor))
      throw Error(ExitCode::non_finite, "\"" + name + "\" holds NaN or infinity: nothing is exported");
  weights::write_safetensors(file, tensors,
                             {{"format", "pt"}, {"software", "trainer"}, {"step", std::to_string(step)}});
}

}  // namespace

std::filesystem::path export_trained(const assembly::LoadedModel& loaded, const std::filesystem::path& file,
                                     int64_t step) {
  if (!loaded.adapter) {
    write_tensors(file, model_tensors(loaded), step);
    return file;
  }
  const LoraFormat& format = loaded.lora_family.formats.front();
  Pairs tensors = adapter_tensors(loaded);
  adapter::LoraFile lora{lora_layers(tensors), format.name, {}, step};
  if (!lora.layers.empty()) {
    adapter::write_lora(file, lora, loaded.lora_family, format);
  } else {  // an adapter of a plugin that is no LoRA: as it names its tensors
    for (auto& [name, tensor] : tensors) name.insert(0, format.prefix);
    write_tensors(file, tensors, step);
  }
  return file;
}

std::vector<LoraLayer> lora_for(const assembly::LoadedModel& outline, const std::filesystem::path& path) {
  adapter::LoraFile lora = adapter::read_lora(path, outline.lora_family);
  adapter::check_layers(path.string(), lora.layers, outline.inventory.linears);
  return std::move(lora.layers);
}

void apply_lora(assembly::LoadedModel& loaded, const std::vector<LoraLayer>& lora) {
  std::map<std::string_view, const LoraLayer*> layers;
  for (const LoraLayer& layer : lora) layers.emplace(layer.layer, &layer);
  for (const Linear& linear : loaded.inventory.linears)
    if (const auto it = layers.find(linear.name()); it != layers.end())
      linear.state().adapter = adapter::frozen_lora(*it->second, loaded.devices.of(linear.name()));
}

}  // namespace trainer::run
