/// @file Which model family a LoRA file belongs to, found by asking every model plugin.
#pragma once

#include <adapter/lora_file.hpp>
#include <plugin/loader.hpp>

#include <filesystem>
#include <string>

namespace trainer::train {

struct KnownLora {
  std::string model;  ///< the model component, "flux2"
  LoraFamily family;
  adapter::LoraFile lora;
};

/// Reads a LoRA with the family of `model`, or, when that is empty, of the first model plugin that knows all its
/// tensors. Throws Error: bad_input with what each family objects to; plugin_rejected for a `model` that there is not.
KnownLora open_lora(plugin::Loader& loader, const weights::TensorFile& file, const std::string& model = {});

}  // namespace trainer::train
