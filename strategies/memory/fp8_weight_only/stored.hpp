/// @file Weights that a file already holds in fp8, with the scale tensors of the common layouts.
#pragma once

#include <trainer/sdk/weights.hpp>

#include <optional>

#include "quantize.hpp"

namespace trainer::fp8 {

/// The weight `name` ("<layer>.weight", [out, in]) exactly as stored when it is fp8; nullopt when it is not.
/// Its scale is one of these tensors, in fp32, bf16 or fp16; without any it is 1 (a plain cast):
///   "<layer>.weight_scale"      ComfyUI, compressed-tensors: one, or one an output channel
///   "<layer>.scale_weight"      older ComfyUI, musubi-tuner: one, [out, 1], or [out, blocks, 1] along the input
///   "<layer>.weight_scale_inv"  DeepSeek, transformers: 128 x 128 tiles, the last ones cut (a factor, despite its
///   name)
/// "<layer>.comfy_quant" (JSON) is obeyed; scales of activations ("input_scale", "scale_input") do not matter here.
/// Throws Error (bad_input, FP8_SCALE) for scales that fit no layout, are negative or not finite, stand beside a weight
/// that is not fp8, or are two; (FP8_NOT_FINITE) for NaN among the values.
std::optional<Packed> stored_fp8(WeightSource& source, const std::string& name);

}  // namespace trainer::fp8
