#include "timesteps.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trainer::flow_matching {
namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

/// Mean and minimum of DiffSynth's weights over its table of 1000 sigmas shifted by mu = 0.8.
struct GaussianTable {
  double minimum = 0, mean = 0;
};
double gaussian(double sigma) { return std::exp(-2.0 * (sigma - 0.5) * (sigma - 0.5)); }
const GaussianTable& gaussian_table() {
  static const GaussianTable table = [] {
    constexpr int kSteps = 1000;
    GaussianTable made{1.0, 0.0};
    double sum = 0;
    for (int i = 0; i < kSteps; ++i) {
      const double raw = 1.0 - (1.0 - 0.001) * i / (kSteps - 1);
      const double y = gaussian(exponential_shift(raw, 0.8));
      made.minimum = std::min(made.minimum, y);
      sum += y;
    }
    made.mean = sum / kSteps - made.minimum;
    return made;
  }();
  return table;
}

}  // namespace

TimestepOptions timestep_options(const Options& options) {
  TimestepOptions made;
  made.distribution = options.get<std::string>("timesteps.distribution");
  made.mean = options.get<double>("timesteps.mean");
  made.std = options.get<double>("timesteps.std");
  made.scale = options.get<double>("timesteps.scale");
  made.uniform_fraction = options.get<double>("timesteps.uniform_fraction");
  made.grid = options.get<int64_t>("timesteps.grid");
  const Value& shift = options.values().find("timesteps.shift")->second;
  if (const auto* name = shift.get_if<std::string>())
    made.resolution_shift = *name == "resolution";
  else
    made.resolution_shift = false, made.shift = options.get<double>("timesteps.shift");
  return made;
}

double raw_noise_level(const TimestepOptions& options, double uniform, double normal) {
  if (options.distribution == "uniform") return 1.0 - uniform;
  if (options.distribution == "logit_normal") return sigmoid(options.mean + options.std * normal);
  if (options.distribution == "mode") {
    // diffusers counts u from noise to data; the noise level is 1 - u.
    const double c = std::cos(std::numbers::pi * uniform / 2.0);
    return uniform + options.scale * (c * c - 1.0 + uniform);
  }
  throw Error(ExitCode::bad_recipe, "objective.timesteps.distribution: unknown \"" + options.distribution + "\"");
}

double exponential_shift(double sigma, double mu) {
  const double e = std::exp(mu);
  return e * sigma / (1.0 + (e - 1.0) * sigma);
}

double noise_level(const TimestepOptions& options, double choice, double uniform, double normal, double mu) {
  double sigma = 0;
  if (choice < options.uniform_fraction) {
    sigma = 1.0 - uniform;
  } else {
    sigma = raw_noise_level(options, uniform, normal);
    sigma = exponential_shift(sigma, options.resolution_shift ? mu : std::log(options.shift));
  }
  sigma = std::clamp(sigma, 1e-5, 1.0);
  if (options.grid <= 0) return sigma;
  const auto grid = static_cast<double>(options.grid);
  // diffusers' grid - floor(grid (1 - sigma)); the margin keeps a level that is on the grid where it is.
  return std::clamp(std::ceil(grid * sigma - 1e-9), 1.0, grid) / grid;
}

double loss_weight(const std::string& weighting, double sigma) {
  if (weighting == "none") return 1.0;
  if (weighting == "sigma_sqrt") return 1.0 / (sigma * sigma);
  if (weighting == "cosmap") return 2.0 / (std::numbers::pi * (1.0 - 2.0 * sigma + 2.0 * sigma * sigma));
  if (weighting == "gaussian") return (gaussian(sigma) - gaussian_table().minimum) / gaussian_table().mean;
  throw Error(ExitCode::bad_recipe, "objective.weighting: unknown \"" + weighting + "\"");
}

}  // namespace trainer::flow_matching
