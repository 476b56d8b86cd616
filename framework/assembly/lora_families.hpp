/// @file Which model family a LoRA file belongs to, found by asking every model plugin.
#pragma once

#include <adapter/lora_file.hpp>
#include <plugin/loader.hpp>

#include <filesystem>
#include <optional>
#include <string>

namespace trainer::assembly {

struct KnownLora {
  std::string model;  ///< the model component, "flux2"
  LoraFamily family;
  adapter::LoraFile lora;
};

/// The family of a model component. Throws Error (plugin_rejected) when there is none of that name.
LoraFamily family_of(plugin::Loader& loader, const std::string& model);

/// The family of the first model plugin that knows the names of all tensors of `file`, whatever is in them.
std::optional<LoraFamily> family_of_names(plugin::Loader& loader, const weights::TensorFile& file);

/// Reads a LoRA with the family of `model`, or, when that is empty, of the first model plugin that knows all its
/// tensors. Throws Error: bad_input with what its family objects to, or, when none knows all names, what each does;
/// plugin_rejected for a `model` that there is not.
KnownLora open_lora(plugin::Loader& loader, const weights::TensorFile& file, const std::string& model = {});

}  // namespace trainer::assembly
