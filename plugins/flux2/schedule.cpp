/// @file Formulas of src/flux2/sampling.py of github.com/black-forest-labs/flux2.
#include "schedule.hpp"

#include <trainer/sdk/error.hpp>

#include <cmath>
#include <string>

namespace trainer::flux2 {

double training_mu(int64_t tokens) { return 0.5 + static_cast<double>(tokens - 256) * (1.15 - 0.5) / (4096 - 256); }

double empirical_mu(int64_t tokens, int64_t steps) {
  const auto s = static_cast<double>(tokens);
  const double at_200_steps = 0.00016927 * s + 0.45666666;
  if (tokens > 4300) return at_200_steps;
  const double at_10_steps = 8.73809524e-05 * s + 1.89833333;
  const double slope = (at_200_steps - at_10_steps) / 190.0;
  return slope * static_cast<double>(steps) + (at_200_steps - 200.0 * slope);
}

std::vector<double> sampling_sigmas(int64_t tokens, int64_t steps) {
  if (steps < 1) throw Error(ExitCode::bad_recipe, "sampling needs at least 1 step, got " + std::to_string(steps));
  // In fp32, as diffusers computes them (a linspace from 1 to 1 / steps, then the shift), so that samples agree with it
  // to the last bit of every sigma.
  const auto shift = static_cast<float>(std::exp(empirical_mu(tokens, steps)));
  const double last = 1.0 / static_cast<double>(steps);
  const double stride = steps > 1 ? (last - 1.0) / static_cast<double>(steps - 1) : 0.0;
  std::vector<double> sigmas;
  for (int64_t i = 0; i < steps; ++i) {
    const auto t = static_cast<float>(i == steps - 1 ? last : 1.0 + static_cast<double>(i) * stride);
    sigmas.push_back(shift / (shift + (1.0F / t - 1.0F)));
  }
  sigmas.push_back(0.0);
  return sigmas;
}

}  // namespace trainer::flux2
