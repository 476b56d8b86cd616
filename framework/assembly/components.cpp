#include <adapter/adapter_file.hpp>
#include <assembly/components.hpp>
#include <assembly/lora_families.hpp>

namespace trainer::assembly {
namespace {

/// Of the devices that train, by the manifests of the strategies.
void require_capabilities(const recipe::Memory& memory, const plugin::Found& found,
                          const std::vector<at::Device>& devices) {
  for (const recipe::Component& component : memory.components)
    for (const plugin::Manifest& manifest : found.manifests)
      if (manifest.schema.kind == "memory" && manifest.schema.name == component.kind && manifest.cuda_capability > 0)
        for (const at::Device device : devices)
          require_capability(component.position.text() + ": memory.strategies: \"" + component.kind + "\"",
                             manifest.cuda_capability, device, capability_of(device));
}

}  // namespace

LoraFamily lora_family(const ModelComponent& component) {
  return component.lora_family != nullptr ? component.lora_family() : adapter::plain_family(component.name);
}

at::ScalarType dtype_of(const std::string& name) { return name == "fp32" ? at::kFloat : at::kBFloat16; }

Components::Components(const recipe::Recipe& recipe, plugin::Loader& plugins, const Devices& devices)
    : recipe_(recipe), plugins_(plugins), devices_(devices) {
  if (devices.are_open()) require_capabilities(recipe.memory, plugins.found(), devices.training());
}

const ModelComponent& Components::model() {
  plugins_.require("model", recipe_.model.kind);
  return plugins_.registry().models.find(recipe_.model.kind)->second;
}

std::unique_ptr<TextEncoder> Components::text_encoder(const EncoderContext& context) {
  return make(plugins_, plugins_.registry().text_encoders, "text_encoder", recipe_.text_encoder.kind, context);
}

std::unique_ptr<Autoencoder> Components::autoencoder(const EncoderContext& context) {
  return make(plugins_, plugins_.registry().autoencoders, "autoencoder", recipe_.autoencoder.kind, context);
}

std::unique_ptr<Objective> Components::objective() {
  const recipe::Component& component = recipe_.objective;
  return make(plugins_, plugins_.registry().objectives, "objective", component.kind, component.options);
}

std::unique_ptr<Placement> Components::placement() {
  const recipe::Component& component = recipe_.placement;
  return make(plugins_, plugins_.registry().placements, "placement", component.kind, component.options);
}

MadeAdapter Components::adapter(const LoraFamily& family, std::span<const Linear> layers) {
  const recipe::Component& component = *recipe_.adapter;
  MadeAdapter made{make(plugins_, plugins_.registry().adapters, "adapter", component.kind, component.options)};
  if (component.path.empty()) return made;
  const weights::TensorFile file(component.path, {weights::Profile::compat, weights::ReadMode::copy});
  adapter::ReadAdapter read = read_for(plugins_.found(), file, family, component.kind);
  adapter::check_layers(component.path, read, layers);
  made.file_layers = read.layers();
  plugin::guard(component.kind, "start_from", [&] { made.adapter->start_from(std::move(read.file)); });
  return made;
}

std::unique_ptr<MemoryStrategy> Components::memory_strategy(const recipe::Component& component) {
  return make(plugins_, plugins_.registry().memory, "memory", component.kind, component.options);
}

}  // namespace trainer::assembly
