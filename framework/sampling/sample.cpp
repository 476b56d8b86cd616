#include <ATen/ops/empty.h>
#include <base/rng.hpp>
#include <sampling/sample.hpp>
#include <trainer/sdk/error.hpp>

namespace trainer::sampling {

at::Tensor start_noise(uint64_t seed, uint64_t index, int64_t channels, int64_t height, int64_t width) {
  at::Tensor noise = at::empty({1, channels, 1, height, width}, at::TensorOptions(at::kFloat));
  KeyedRng rng(seed, RngStream::sample_noise, index);
  rng.fill_normal({noise.mutable_data_ptr<float>(), static_cast<std::size_t>(noise.numel())});
  return noise;
}

at::Tensor sample_latents(const Forward& forward, const DiffusionTraits* traits, const SampleRequest& request,
                          at::Device device, const Progress& progress) {
  if (traits == nullptr || !traits->sigmas || !traits->tokens) {
    throw Error(ExitCode::failed, "this model is not a diffusion model: it cannot be sampled");
  }
  if (request.height < 1 || request.width < 1 || request.steps < 1) {
    throw Error(ExitCode::bad_recipe, "a sample needs at least 1 step and 1x1 latents, not " +
                                          std::to_string(request.steps) + " steps at " +
                                          std::to_string(request.height) + "x" + std::to_string(request.width));
  }
  const auto tokens = traits->tokens(1, request.height, request.width);
  const std::vector<double> sigmas = traits->sigmas(tokens, request.steps);
  const at::Tensor noise =
      start_noise(request.seed, request.index, traits->latent_channels, request.height, request.width).to(device);
  const Velocity velocity = guided_velocity(forward, *traits, request.conditioning, request.guidance);
  return euler(velocity, sigmas, noise, progress);
}

}  // namespace trainer::sampling
