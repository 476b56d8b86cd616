/// @file LoRA files of every format a model family knows: one reader and one writer for export, sampling, training on
/// and `inspect`. What the formats look like: docs/lora-formats.md.
///
/// In memory a LoRA is a list of pairs under canonical layer names with their alpha. Fused layers are parted when read
/// and joined when written (adapter/fuse.hpp), so that reading one format and writing another, and back, gives the
/// first file's bits.
#pragma once

#include <adapter/lora_keys.hpp>
#include <adapter/lora_layer.hpp>
#include <trainer/sdk/layers.hpp>
#include <weights/tensor_file.hpp>

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trainer::adapter {

struct LoraFile {
  std::vector<LoraLayer> layers;  ///< on the CPU, stored dtype, in the order of their names
  std::string format;  ///< that it was read in, "diffusers"; "other" when no format of the family is exactly so
  std::string alpha;   ///< where alpha comes from, in words
  std::optional<int64_t> step;                   ///< of the run that made it, as its metadata says
  std::map<std::string, std::string> more = {};  ///< to write: entries of the metadata beside the usual ones
};

/// The family of a model component that has none: canonical names without a prefix.
LoraFamily plain_family(const std::string& name);

/// Reads a LoRA of `family`. Alpha is that of the file's tensors, else of peft's configuration (in the metadata, or
/// adapter_config.json beside a file of peft), else the rank.
/// Throws Error: bad_input (LORA_KEYS) listing every tensor that belongs to no layer, with near names, and every layer
/// of which a part is missing or does not fit the other; bad_input (LORA_NONFINITE) naming the tensor; and what
/// TensorFile throws.
LoraFile read_lora(const weights::TensorFile& file, const LoraFamily& family);
LoraFile read_lora(const std::filesystem::path& file, const LoraFamily& family);

/// The format of that name. Throws Error (usage) with near names.
const LoraFormat& format_named(const LoraFamily& family, const std::string& name);

/// Writes `lora` whole or not at all. Nothing personal goes into the metadata: no path, user, host, time or text of the
/// source file. Throws Error: non_finite, naming the tensor (nothing is written); bad_input for a layer that has no
/// name in the format; io.
void write_lora(const std::filesystem::path& file, const LoraFile& lora, const LoraFamily& family,
                const LoraFormat& format);

/// Throws Error (bad_input, LORA_LAYERS) listing the pairs that no layer of the model has, with near names, and those
/// that do not fit its layer. `where` names the file.
void check_layers(const std::string& where, std::span<const LoraLayer> layers, std::span<const Linear> model);

}  // namespace trainer::adapter
