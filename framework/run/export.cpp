#include <ATen/core/Tensor.h>
#include <adapter/inject.hpp>
#include <plugin/guard.hpp>
#include <run/export.hpp>
#include <trainer/sdk/names.hpp>
#include <weights/convert.hpp>
#include <weights/write.hpp>

namespace trainer::run {
namespace {

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

AdapterFile exported(const assembly::LoadedModel& loaded) {
  AdapterFile file{{}, loaded.adapter->metadata()};
  for (const Linear& layer : loaded.adapted)
    for (auto& [name, tensor] : loaded.adapter->export_layer(layer.state())) {
      if (!name.starts_with(layer.name() + "."))
        throw Error(ExitCode::plugin_rejected, "the adapter exports " + quote_name(name) + " for the layer " +
                                                   quote_name(layer.name()) + ", with whose name it does not begin");
      file.layers[layer.name()][name.substr(layer.name().size() + 1)] = tensor;
    }
  return file;
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
  const AdapterFile adapter = exported(loaded);
  adapter::write_adapter(file, adapter, loaded.adapter_kind, loaded.lora_family,
                         adapter::format_of_run(adapter, loaded.lora_family), step);
  return file;
}

void apply_adapter(assembly::LoadedModel& loaded, Adapter& made, const adapter::ReadAdapter& read,
                   at::ScalarType dtype) {
  plugin::guard(read.kind, "start_from", [&] { made.start_from(read.file); });
  std::vector<Linear> layers;
  for (const Linear& linear : loaded.inventory.linears)
    if (read.file.layers.contains(linear.name())) layers.push_back(linear);
  const auto device_of = [&](const std::string& layer) { return loaded.devices.of(layer); };
  const std::vector<Parameter*> values =
      plugin::guard(read.kind, "attach", [&] { return adapter::inject(made, layers, /*seed=*/0, device_of, dtype); });
  for (Parameter* parameter : values) parameter->value().requires_grad_(false);
}

}  // namespace trainer::run
