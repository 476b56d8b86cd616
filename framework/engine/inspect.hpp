/// @file The parts of `trainer inspect` that have a source of their own.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <plugin/loader.hpp>
#include <string>
#include <vector>
#include <weights/model_files.hpp>

namespace trainer::engine {

using Json = nlohmann::ordered_json;

/// Adds what a file of an adapter is: family, format, readers, layers and, of a LoRA, ranks and alpha; or, when no
/// plugin knows its layers, why. False, and nothing added, for a file that is not an adapter.
bool inspect_lora(Json& json, const weights::ModelFiles& files, plugin::Loader& loader);

/// Adds which model plugin recognises the tensors, what it says of them and which programs read them. False, and why
/// each plugin refuses them in `refusals`, when none does.
bool inspect_model(Json& json, const std::shared_ptr<weights::ModelFiles>& files, plugin::Loader& loader,
                   Json& refusals);

/// Adds which programs read an encoder: with plugins of `kind` (autoencoder, text_encoder) it is made on shapes alone.
/// False when no plugin reads it.
bool inspect_encoder(Json& json, const std::shared_ptr<weights::ModelFiles>& files, plugin::Loader& loader,
                     const std::string& kind);

/// What a checkpoint's folder holds: model, adapter with rank and alpha or all parameters, tensors, who reads it.
/// Throws as checkpoint::load; of a recipe in it that cannot be read says why.
Json inspect_checkpoint(const std::filesystem::path& folder, plugin::Loader& loader);

/// As the file format names it, e.g. "BF16".
std::string dtype_text(at::ScalarType type);
/// "192 x 4"
std::string shape_text(const std::vector<int64_t>& shape);

/// config.json beside the files; discarded when there is none or it is no JSON. Sorted: keeping the order of a
/// stranger's keys takes time that grows with the square of their number.
nlohmann::json config_of(const weights::ModelFiles& files);

}  // namespace trainer::engine
