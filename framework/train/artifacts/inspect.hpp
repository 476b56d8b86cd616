/// @file The parts of `trainer inspect` that have a source of their own.
#pragma once

#include <nlohmann/json.hpp>
#include <plugin/loader.hpp>
#include <weights/model_files.hpp>

namespace trainer::train {

using Json = nlohmann::ordered_json;

/// Adds what a LoRA file is: family, format, readers, layers, ranks, alpha; or, when no plugin knows its layers, why.
/// False, and nothing added, for a file that is no LoRA.
bool inspect_lora(Json& json, const weights::ModelFiles& files, plugin::Loader& loader);

}  // namespace trainer::train
