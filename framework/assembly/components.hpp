/// @file The components that a recipe names, made by their plugins.
#pragma once

#include <assembly/devices.hpp>
#include <plugin/loader.hpp>
#include <recipe/recipe.hpp>
#include <trainer/sdk/error.hpp>

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trainer::assembly {

/// Opens the plugin of one component if need be and makes it. `parts` are those of the loader's registry. Throws
/// PluginError, also when the plugin makes nothing.
template <typename Parts, typename Context>
auto make(plugin::Loader& plugins, const Parts& parts, const std::string& kind, const std::string& name,
          const Context& context) {
  plugins.require(kind, name);
  auto made = plugin::guard(name, "create", [&] { return parts.find(name)->second.create(context); });
  if (made == nullptr)
    throw PluginError(name, "create", "the plugin made no " + (kind == "memory" ? "memory strategy" : kind));
  return made;
}

/// The recipe's adapter, not attached.
struct MadeAdapter {
  std::unique_ptr<Adapter> adapter;
  std::vector<std::string> file_layers{};  ///< layers of the file that it starts from; empty without one
};

/// Makes what the recipe names, with its options; every call makes a new one. All methods throw PluginError when a
/// plugin cannot be opened or fails.
class Components {
 public:
  /// Borrows all three. Throws Error (unavailable) when a memory strategy needs newer CUDA devices than those.
  Components(const recipe::Recipe& recipe, plugin::Loader& plugins, const Devices& devices);

  [[nodiscard]] const recipe::Recipe& recipe() const { return recipe_; }
  [[nodiscard]] plugin::Loader& plugins() const { return plugins_; }
  [[nodiscard]] const Devices& devices() const { return devices_; }

  const ModelComponent& model();
  std::unique_ptr<TextEncoder> text_encoder(const EncoderContext& context);
  std::unique_ptr<Autoencoder> autoencoder(const EncoderContext& context);
  std::unique_ptr<Objective> objective();
  std::unique_ptr<Placement> placement();
  /// With the values of its file where the recipe names one. That file is read by `family` and must fit `layers`, those
  /// of the model. Throws Error (bad_input, bad_recipe) when it does not.
  MadeAdapter adapter(const LoraFamily& family, std::span<const Linear> layers);
  std::unique_ptr<MemoryStrategy> memory_strategy(const recipe::Component& component);

 private:
  const recipe::Recipe& recipe_;
  plugin::Loader& plugins_;
  const Devices& devices_;
};

/// The LoRA files of a model component.
LoraFamily lora_family(const ModelComponent& component);

/// "fp32" or "bf16".
at::ScalarType dtype_of(const std::string& name);

}  // namespace trainer::assembly
