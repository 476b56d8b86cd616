/// @file One picture's latents from a seed and a prompt: start noise, schedule, guided Euler steps.
#pragma once

#include <sampling/guidance.hpp>

namespace trainer::sampling {

/// Standard normal [1, channels, 1, height, width] fp32 on the CPU. A function of (seed, index) and the shape only:
/// `index` is the prompt's place in the recipe, so that a prompt looks the same whatever is sampled beside it.
at::Tensor start_noise(uint64_t seed, uint64_t index, int64_t channels, int64_t height, int64_t width);

struct SampleRequest {
  Conditioning conditioning;
  int64_t height = 0, width = 0;  ///< of the latents, in cells
  int64_t steps = 28;
  double guidance = 4.0;
  uint64_t seed = 0, index = 0;  ///< of the start noise
};

/// Latents [1, C, 1, height, width] fp32 on `device`, normalised, ready for Autoencoder::decode.
/// Throws Error: bad_recipe (sizes or steps below 1, no negative prompt), failed (the model is no diffusion model).
at::Tensor sample_latents(const Forward& forward, const DiffusionTraits* traits, const SampleRequest& request,
                          at::Device device, const Progress& progress = {});

}  // namespace trainer::sampling
