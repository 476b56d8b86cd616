/// @file All that a few optimiser steps show, recorded, and where two records differ first: the one comparison behind
/// `trainer prove`, `trainer plugins check` and the equivalence matrix.
#pragma once

#include <train/assembly/memory_stack.hpp>
#include <train/prove/random_batches.hpp>
#include <trainer/sdk/placement.hpp>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trainer::prove {

/// Record of a run. Tensors are copies on the CPU.
struct Trajectory {
  std::vector<double> losses;  ///< per step
  /// Per parameter: what each step and micro-batch brings, before it is added up, in that order. (Within one backward,
  /// parameters of a recomputed block get theirs in another order.)
  std::map<std::string, std::vector<at::Tensor>> gradients;
  std::map<std::string, at::Tensor> weights;         ///< trained tensors after the last step
  std::map<std::string, RecomputeReport> recompute;  ///< by block type; empty where nothing was recomputed
  [[nodiscard]] std::size_t gradient_count() const;
};

/// The first difference of a run from what it should equal: losses, then gradients in the order of steps, then weights.
struct Difference {
  std::string what;                ///< "loss of step 2", "gradient 1 of blocks.0.up.lora_B.weight"
  std::vector<int64_t> element{};  ///< index in the tensor; empty for numbers and where shapes differ
  double got = 0, expected = 0;
  double largest = 0;       ///< max |got - expected| / max |expected| over the tensor
  std::size_t tensors = 0;  ///< how many gradients and weights differ in all
  /// "gradient 1 of blocks.0.up.lora_B.weight at [3, 0]: 0.12345678 instead of 0.12345677; ..."
  [[nodiscard]] std::string text() const;
};
/// Nothing when both are equal bit for bit.
std::optional<Difference> first_difference(const Trajectory& run, const Trajectory& expected);

/// What is trained and how; borrowed.
struct Bench {
  Model& model;
  const std::vector<Parameter*>& trained;
  const Objective& objective;
  const train::MemoryStack& memory;
  const PlacementPlan& placement;
  RandomBatches& data;
  uint64_t seed = 0;
  double max_grad_norm = 1.0;
  bool fused_backward = false;
};

/// Where a step dies for the first time, to be repeated.
struct Failure {
  enum Place { nowhere, before_forward, before_backward } place = nowhere;
  int64_t micro_batch = 0;
};

/// Trains with AdamW at a rate that moves every weight. With a `failure` each step is tried, dies there and is
/// repeated; the record is that of the repetitions.
Trajectory train_steps(const Bench& bench, int64_t steps, const Failure& failure = {});

}  // namespace trainer::prove
