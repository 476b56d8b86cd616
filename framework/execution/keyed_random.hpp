/// @file The run's randomness for objectives: Philox keyed by (seed, purpose, step, sample), whatever the device, the
/// micro-batch size or the number of workers.
#pragma once

#include <base/rng.hpp>
#include <trainer/sdk/objective.hpp>

namespace trainer::execution {

class KeyedRandom final : public Random {
 public:
  explicit KeyedRandom(uint64_t seed) : seed_(seed) {}
  [[nodiscard]] at::Tensor noise(const Batch& batch, at::IntArrayRef row_shape) const override;
  [[nodiscard]] std::vector<double> uniform(const Batch& batch, int64_t b, int64_t count) const override;
  [[nodiscard]] std::vector<double> normal(const Batch& batch, int64_t b, int64_t count) const override;

 private:
  uint64_t seed_;
};

/// Standard normal fp32 [shape...] of one stream on the CPU.
at::Tensor keyed_normal(KeyedRng rng, at::IntArrayRef shape);

}  // namespace trainer::execution
