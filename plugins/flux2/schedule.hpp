/// @file Noise schedules of FLUX.2: the training shift and the sampling sigmas.
#pragma once

#include <cstdint>
#include <vector>

namespace trainer::flux2 {

/// Linear through (256 tokens, 0.5) and (4096, 1.15), not clamped; musubi-tuner's flux2_shift.
double training_mu(int64_t tokens);

/// Shift for sampling `steps` steps; compute_empirical_mu of black-forest-labs/flux2 and diffusers. It jumps at 4300
/// tokens, as there.
double empirical_mu(int64_t tokens, int64_t steps);

/// steps + 1 values from 1 to 0. `steps` must be positive.
std::vector<double> sampling_sigmas(int64_t tokens, int64_t steps);

}  // namespace trainer::flux2
