/// @file The learning rate as a pure function of the step, so that a resume needs nothing but the step number.
#pragma once

#include <cstdint>
#include <string>

namespace trainer::optim {

struct LrSchedule {
  std::string kind = "constant";  ///< constant, linear, cosine, cosine_restarts: see docs/recipe-reference.md
  double lr = 1e-4;               ///< peak
  int64_t warmup_steps = 0;       ///< linear from lr / warmup_steps at the first step to lr
  int64_t total_steps = 1;
  double min_factor = 0.0;  ///< lr at the end as a share of the peak
  int64_t cycles = 1;       ///< cosine_restarts only

  /// The learning rate of optimiser step `step`, counted from 0.
  [[nodiscard]] double at(int64_t step) const;
};

}  // namespace trainer::optim
