/// @file From a trained model to a velocity: model time, sign, and guidance (an input of the model, or two forwards).
#pragma once

#include <sampling/euler.hpp>
#include <trainer/sdk/model.hpp>

namespace trainer::sampling {

/// One forward without gradients: inputs by name -> the model's output [B, C, T, h, w].
using Forward = std::function<at::Tensor(const NamedTensors& inputs)>;

/// What a picture is made from. Tensors have a batch axis, e.g. {"prompt_embeds": [1, L, J]}.
struct Conditioning {
  NamedTensors positive;  ///< also other inputs of the model, e.g. clean references
  NamedTensors negative;  ///< the same names for the negative prompt; may be empty where it is not used
};

/// Time the model is given at noise level sigma.
double model_time(const DiffusionTraits& traits, double sigma);

/// True when `guidance` makes two forwards of every step, so that a negative prompt is needed.
bool needs_negative(const DiffusionTraits& traits, double guidance);

/// Velocity noise - data of the guided model. Inputs added to the conditioning: "latents", "timestep" [B] and, where
/// guidance is embedded, "guidance" [B] = `guidance` with a single forward. Otherwise classifier-free guidance
/// v_neg + guidance * (v_pos - v_neg) where guidance > 1 (as diffusers does), a single forward below.
/// Throws Error (bad_recipe) when a negative prompt is needed and there is none.
Velocity guided_velocity(Forward forward, const DiffusionTraits& traits, Conditioning conditioning, double guidance);

}  // namespace trainer::sampling
