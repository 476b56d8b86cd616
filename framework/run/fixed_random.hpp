/// @file The randomness of a validation: the same in every one. In place of random numbers an objective gets points
/// that are spread evenly over its distribution, one a timestep; noise is keyed by (seed, timestep, sample).
#pragma once

#include <trainer/sdk/objective.hpp>

namespace trainer::run {

/// For batches whose `step` is the index of the timestep, and whose sample keys name the samples, not their places.
class FixedRandom final : public Random {
 public:
  /// `timesteps`: how many points.
  FixedRandom(uint64_t seed, int64_t timesteps) : seed_(seed), timesteps_(timesteps) {}
  [[nodiscard]] at::Tensor noise(const Batch& batch, at::IntArrayRef row_shape) const override;
  /// Of a Hammersley set: the last of `count` numbers is i / timesteps for timestep i, those before it are i in the van
  /// der Corput sequences of 2, 3, 5, ... (Niederreiter 1992, chapter 3), all half a step further, so between 0 and 1.
  /// Throws Error for more than 8.
  [[nodiscard]] std::vector<double> uniform(const Batch& batch, int64_t b, int64_t count) const override;
  /// The standard normal's quantiles of the same points.
  [[nodiscard]] std::vector<double> normal(const Batch& batch, int64_t b, int64_t count) const override;

 private:
  uint64_t seed_;
  int64_t timesteps_;
};

/// The standard normal's quantile of 0 < p < 1, to 1e-13 relative: Wichura 1988, AS 241.
double normal_quantile(double p);

}  // namespace trainer::run
