/// @file Where two records of a run differ, and how far: the comparisons behind `trainer prove`, `trainer plugins
/// check` and the equivalence matrix.
#pragma once

#include <prove/trajectory.hpp>
#include <recipe/schema.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trainer::prove {

/// A number that is not what it should be.
struct Spot {
  std::string what;                ///< "loss of step 2", "gradient 1 of blocks.0.up.lora_B.weight"
  std::vector<int64_t> element{};  ///< index in the tensor; empty for losses and where shapes differ
  double got = 0, expected = 0;
  double apart = 0;  ///< |got - expected| over the tensor's largest |expected|; infinite when not a number
  /// "gradient 1 of blocks.0.up.lora_B.weight at [3, 0]: 0.12345678 instead of 0.12345677"
  [[nodiscard]] std::string text() const;
};

/// A run differs from what it should equal.
struct Difference {
  Spot first;               ///< losses, then gradients in the order of steps, then weights
  Spot largest;             ///< by `apart`
  std::size_t tensors = 0;  ///< how many gradients and weights differ
  /// First, largest and where, how many.
  [[nodiscard]] std::string text() const;
};
/// Nothing when both are equal bit for bit.
std::optional<Difference> first_difference(const Trajectory& run, const Trajectory& expected);

/// How far a run with packed weights is from the run with those of the file. Gradients of a micro-batch are taken as
/// one vector: norm of the difference over their norm.
struct Distance {
  double loss = 0;       ///< largest |loss / expected loss - 1| of a step
  double gradients = 0;  ///< largest of the first step's micro-batches
  double later = 0;      ///< largest of the later steps', which an optimiser has moved apart
  /// `loss` within it, `gradients` within kGradients times it, `later` within twice that. False for what is no number.
  [[nodiscard]] bool within(double tolerance) const;
  /// "loss 0.0012, gradients 0.038 apart (0.11 after steps)"
  [[nodiscard]] std::string text() const;
  /// A loss is a mean, in which errors of weights cancel; gradients are as far as single weights are, and further where
  /// they are small.
  static constexpr double kGradients = 5;
};
Distance distance(const Trajectory& run, const Trajectory& expected);

}  // namespace trainer::prove
