#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <sampling/guidance.hpp>
#include <trainer/sdk/error.hpp>

namespace trainer::sampling {
namespace {

NamedTensors step_inputs(const NamedTensors& conditioning, const at::Tensor& latents, double time) {
  NamedTensors inputs = conditioning;
  inputs["latents"] = latents;
  inputs["timestep"] = at::full({latents.size(0)}, time, latents.options().dtype(at::kFloat));
  return inputs;
}

}  // namespace

double model_time(const DiffusionTraits& traits, double sigma) {
  return traits.time_at_noise * sigma + (1 - traits.time_at_noise) * (1 - sigma);
}

bool needs_negative(const DiffusionTraits& traits, double guidance) {
  return !traits.guidance_embedded && guidance > 1;
}

Velocity guided_velocity(Forward forward, const DiffusionTraits& traits, Conditioning conditioning, double guidance) {
  const bool two = needs_negative(traits, guidance);
  if (two && conditioning.negative.empty()) {
    throw Error(ExitCode::bad_recipe,
                "guidance " + std::to_string(guidance) + " of this model needs a negative prompt, or a scale of 1");
  }
  return [forward = std::move(forward), traits, conditioning = std::move(conditioning), guidance, two](
             const at::Tensor& latents, double sigma) {
    const double time = model_time(traits, sigma);
    NamedTensors inputs = step_inputs(conditioning.positive, latents, time);
    if (traits.guidance_embedded) inputs["guidance"] = at::full_like(inputs.at("timestep"), guidance);
    at::Tensor v = forward(inputs).to(at::kFloat);
    if (two) {
      const at::Tensor negative = forward(step_inputs(conditioning.negative, latents, time)).to(at::kFloat);
      v = negative + (v - negative) * guidance;
    }
    return traits.velocity_sign < 0 ? -v : v;
  };
}

}  // namespace trainer::sampling
