/// @file Noise levels for flow matching: how sigma in (0, 1] is drawn (1 = pure noise). The named distributions and
/// shifts are those of diffusers' LoRA scripts, musubi-tuner and SD3 (Esser et al. 2024); docs/recipe-reference.md.
#pragma once

#include <trainer/sdk/options.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace trainer::flow_matching {

struct TimestepOptions {
  std::string distribution = "logit_normal";  ///< uniform, logit_normal, mode
  double mean = 0.0, std = 1.0;               ///< of the normal under the sigmoid, in units of noise level
  double scale = 1.29;                        ///< of "mode"
  bool resolution_shift = true;               ///< shift by the model's mu for the number of image tokens
  double shift = 1.0;                         ///< otherwise: sigma' = s sigma / (1 + (s - 1) sigma)
  double uniform_fraction = 0.0;              ///< share of samples drawn uniformly, unshifted
  int64_t grid = 0;                           ///< > 0: only the levels (grid - i) / grid, as diffusers draws them
};

/// Keys of the objective's options, e.g. "timesteps.distribution".
TimestepOptions timestep_options(const Options& options);

/// Noise level before any shift: `uniform` in [0, 1), `normal` standard normal.
double raw_noise_level(const TimestepOptions& options, double uniform, double normal);

/// e^mu sigma / (1 + (e^mu - 1) sigma).
double exponential_shift(double sigma, double mu);

/// The level of one sample. `choice` in [0, 1) decides whether it falls into the uniform share; `mu` is the model's.
double noise_level(const TimestepOptions& options, double choice, double uniform, double normal, double mu);

/// Loss weight w(sigma): "none" 1, "sigma_sqrt" sigma^-2, "cosmap" 2 / (pi (1 - 2 sigma + 2 sigma^2)),
/// "gaussian" DiffSynth's exp(-2 (sigma - 1/2)^2), shifted to 0 at the ends and of mean 1 over its table.
double loss_weight(const std::string& weighting, double sigma);

}  // namespace trainer::flow_matching
