/// @file The tensors that files of 8-bit weights hold beside "<layer>.weight": scales and notes of the packing. Models
/// accept them, a weight format applies them, and the host refuses to take such a weight without them.
///
/// Layouts: ComfyUI ("weight_scale", "input_scale", "comfy_quant"; older "scale_weight", "scale_input" and a lone
/// "scaled_fp8"), compressed-tensors ("weight_scale"), musubi-tuner ("scale_weight"), DeepSeek and transformers
/// ("weight_scale_inv", which multiplies like the others despite its name).
#pragma once

#include <trainer/sdk/weights.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace trainer {

/// "<layer>" of a name that may stand beside "<layer>.weight" in one of these layouts, "" for any other name.
TRAINER_API std::string_view companion_layer(std::string_view name);

/// Tensors of `source` that scale the weight `name` ("<layer>.weight"); more than one is a fault of the file.
TRAINER_API std::vector<std::string> scales_of(const WeightSource& source, std::string_view name);

/// Whether `name` belongs to a layer whose weight `source` holds in fp8, or is the lone "scaled_fp8".
TRAINER_API bool is_fp8_companion(const WeightSource& source, std::string_view name);

}  // namespace trainer
