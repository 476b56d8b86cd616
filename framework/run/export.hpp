/// @file What a run hands to other programs: the trained adapter (or model) as one safetensors file; and adapter
/// files put onto a model. The formats are adapter/adapter_file.hpp's.
#pragma once

#include <adapter/adapter_file.hpp>
#include <assembly/assemble.hpp>

#include <filesystem>

namespace trainer::run {

/// Writes `file` and returns it: an adapter as format_of_run says (for FLUX.2 the format that most programs read:
/// diffusers' names, alpha folded into B), or the trained weights in the dtypes of the original. Throws Error:
/// non_finite (nothing is written), plugin_rejected for a tensor that is not named after its layer, io.
std::filesystem::path export_trained(const assembly::LoadedModel& loaded, const std::filesystem::path& file,
                                     int64_t step);

/// Hangs an adapter out of a file on a model that is loaded for sampling. `made` takes the file's values; nothing is
/// trained. `dtype` is the model's compute dtype.
void apply_adapter(assembly::LoadedModel& loaded, Adapter& made, const adapter::ReadAdapter& read,
                   at::ScalarType dtype);

}  // namespace trainer::run
