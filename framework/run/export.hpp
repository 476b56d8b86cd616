/// @file What a run hands to other programs: the trained adapter (or model) as one safetensors file; and LoRA files put
/// onto a model. The formats are adapter/lora_file.hpp's.
#pragma once

#include <assembly/assemble.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace trainer::run {

/// Writes `file` and returns it: an adapter in the first format of the model's family (for FLUX.2 the one most programs
/// read: diffusers' names, alpha folded into B), or the trained weights in the dtypes of the original. Throws Error:
/// non_finite (nothing is written), io.
std::filesystem::path export_trained(const assembly::LoadedModel& loaded, const std::filesystem::path& file,
                                     int64_t step);

/// A LoRA of any format of the model's family, for a model of which the outline is enough. Throws Error (bad_input),
/// see read_lora and check_layers.
std::vector<LoraLayer> lora_for(const assembly::LoadedModel& outline, const std::filesystem::path& file);

/// Puts a LoRA onto a model loaded for sampling.
void apply_lora(assembly::LoadedModel& loaded, const std::vector<LoraLayer>& lora);

}  // namespace trainer::run
