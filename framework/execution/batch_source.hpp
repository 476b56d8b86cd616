/// @file Where the training loop gets its samples from: the cached data set, or ready tensors in tests.
#pragma once

#include <trainer/sdk/objective.hpp>

#include <string>
#include <vector>

namespace trainer::execution {

/// A pure function of (step, micro-batch): asking again gives the same samples.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Micro-batches of an optimiser step.
  [[nodiscard]] virtual int64_t micro_batches() const = 0;
  virtual Batch batch(int64_t step, int64_t micro) = 0;
  /// Files of the samples of a micro-batch, for messages.
  [[nodiscard]] virtual std::vector<std::string> files(int64_t step, int64_t micro) const = 0;
};

}  // namespace trainer::execution
