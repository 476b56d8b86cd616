/// @file The validation loss: held-out samples, each at fixed timesteps with fixed noise, through the model as it is.
/// It is a function of the weights alone: not of step, batch size, number of ranks or placement. No random number of
/// training is used up and nothing that training reads is changed, so the run learns what it would have learned
/// without.
#pragma once

#include <distributed/group.hpp>
#include <execution/batch_source.hpp>
#include <execution/memory_stack.hpp>
#include <trainer/sdk/objective.hpp>
#include <trainer/sdk/placement.hpp>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trainer::run {

struct ValidationLoss {
  double loss = 0;               ///< mean over samples and timesteps
  std::vector<double> losses;    ///< by timestep, mean over the samples
  std::vector<double> times;     ///< as the objective names them, mean over the samples; empty when it names none
  std::vector<std::string> bad;  ///< files of samples with a loss that is not finite
};

/// Borrowed.
struct ValidationParts {
  Model& model;
  const Objective& objective;
  const execution::MemoryStack& memory;
  const PlacementPlan& placement;
  execution::BatchSource& data;  ///< `micro` is the sample, `step` the timestep; its keys name samples, not places
  int64_t timesteps = 4;         ///< for each sample
  uint64_t seed = 0;
  std::string plugins = "model and objective";  ///< who is named when a call into them throws
};

/// How a validation is watched; all may be empty.
struct ValidationWatch {
  std::function<void(int64_t done, int64_t total)> progress{};  ///< after every sample of this rank
  std::function<bool()> stop{};                                 ///< whether this rank is to end now
  std::function<void(const std::string& problem)> warn{};       ///< what made it fail on this rank
};

/// Collective: every rank takes its share of the samples, one at a time, so that sums are made in one order whatever
/// their number. Nullopt when a rank was stopped or its forward threw: there is no loss then, and training goes on.
std::optional<ValidationLoss> validate(const ValidationParts& parts, distributed::Group& ranks,
                                       const ValidationWatch& watch);

/// One sample at one timestep, without gradients: the example, for its times, and its loss (fp32 scalar).
std::pair<Example, at::Tensor> loss_at(const ValidationParts& parts, const Random& random, int64_t timestep,
                                       int64_t sample);

}  // namespace trainer::run
