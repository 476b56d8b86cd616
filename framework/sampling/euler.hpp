/// @file Euler sampler for flow matching: from noise to data along the velocity a model predicts.
/// Source: FlowMatchEulerDiscreteScheduler of diffusers and the samplers of black-forest-labs/flux2.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>

namespace trainer::sampling {

/// Latents of any shape at noise level sigma (1 = noise, 0 = data) -> velocity noise - data, same shape.
using Velocity = std::function<at::Tensor(const at::Tensor& latents, double sigma)>;

/// Called after each step: steps done, steps in all, latents fp32 (not to be written to).
using Progress = std::function<void(int64_t done, int64_t total, const at::Tensor& latents)>;

/// x <- x + (sigma[i+1] - sigma[i]) * velocity(x, sigma[i]) for i = 0, 1, ...; x starts as `noise` and is kept in fp32
/// on its device. `sigmas`: steps + 1 falling values that end with 0. Returns x. Records no autograd history.
/// Throws Error (failed) for sigmas of another kind or a velocity of another shape.
at::Tensor euler(const Velocity& velocity, std::span<const double> sigmas, const at::Tensor& noise,
                 const Progress& progress = {});

}  // namespace trainer::sampling
