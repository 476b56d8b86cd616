/// @file Presents a FLUX.2 file in the original (Black Forest Labs) key layout under diffusers' names.
/// Used by the host before the factory, see ModelComponent::map_weights.
#pragma once

#include <trainer/sdk/lora_names.hpp>
#include <trainer/sdk/weights.hpp>

#include <memory>
#include <vector>

namespace trainer::flux2 {

/// The layout is told from the names. The original layout (with or without "model.diffusion_model." before each name;
/// RMSNorm weights called `scale` or `weight`) is mapped: fused qkv matrices become three, by row thirds; the halves of
/// final_layer.adaLN_modulation.1 (shift, scale) are swapped into diffusers' order (scale, shift); all else is renamed.
/// Scales beside weights in fp8 go with their weights: cut and swapped like them, or repeated for each third.
/// Names that are in no layout keep their own, so that the model's check reports them. diffusers' layout is passed
/// through, without the prefix. Beside a prefix, the text encoder and autoencoder of an all-in-one file are left out.
/// Throws Error (bad_input, MODEL_KEYS) when two tensors of the file would get the same name.
std::shared_ptr<WeightSource> map_weights(std::shared_ptr<WeightSource> file);

/// Every linear layer under its original name, from the table that map_weights uses.
std::vector<LayerAlias> layer_aliases();

}  // namespace trainer::flux2
