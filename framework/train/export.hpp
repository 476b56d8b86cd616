/// @file What a run hands to other programs: the trained adapter (or model) as one safetensors file.
///
/// An adapter is written in the form that most programs read (diffusers and ComfyUI among them): the model's canonical
/// (diffusers) names with its prefix, lora_A / lora_B, alpha folded into B, no alpha tensors. Nothing personal goes
/// into the metadata.
#pragma once

#include <train/assemble.hpp>

#include <filesystem>
#include <string>

namespace trainer::train {

/// Writes `file` and returns it. Throws Error: non_finite (nothing is written), io.
std::filesystem::path export_trained(const LoadedModel& loaded, const std::filesystem::path& file, int64_t step);

/// Puts an exported adapter onto a model loaded for sampling; also one that diffusers saved, with the alpha it states.
/// Throws Error (bad_input) naming every tensor that fits no layer, and every layer of which only half is there.
void apply_exported(LoadedModel& loaded, const std::filesystem::path& file);

}  // namespace trainer::train
