/// @file The metadata of the LoRA files that we write.
#pragma once

#include <adapter/lora_file.hpp>
#include <adapter/lora_stated.hpp>
#include <weights/safetensors_writer.hpp>

namespace trainer::adapter {

/// The metadata of an export. `layers` as they are written but under canonical names.
weights::Metadata export_metadata(const LoraFile& lora, std::span<const LoraLayer> layers, const LoraFamily& family,
                                  const LoraFormat& format, std::optional<double> folded_scale);

/// Adds the SHA-256 of the bytes of `tensors`, as they are to be written: to modelspec.* metadata, where there is some,
/// and for `kohya` the two by which web UIs know a LoRA.
void add_hashes(weights::Metadata& metadata, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                bool kohya);

}  // namespace trainer::adapter
