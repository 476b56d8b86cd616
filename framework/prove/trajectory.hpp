/// @file All that a few optimiser steps show, recorded.
#pragma once

#include <assembly/model_loader.hpp>
#include <execution/memory_stack.hpp>
#include <planner/byte_counter.hpp>
#include <prove/random_batches.hpp>
#include <trainer/sdk/placement.hpp>

#include <map>
#include <string>
#include <vector>

namespace trainer::prove {

/// Record of a run. Tensors are copies on the CPU, in memory that no byte counter sees.
struct Trajectory {
  std::vector<double> losses;  ///< per step
  /// Per parameter: what each step and micro-batch brings, before it is added up, in that order. (Within one backward,
  /// parameters of a recomputed block get theirs in another order.)
  std::map<std::string, std::vector<at::Tensor>> gradients;
  std::map<std::string, at::Tensor> weights;         ///< trained tensors after the last step
  std::map<std::string, RecomputeReport> recompute;  ///< by block type; empty where no heavy call was seen recomputed
  bool recomputed = false;                           ///< a block was
  int64_t peak_bytes = 0;  ///< of the steps, on the first device, above what was held before them
  double flops = 0;        ///< of all steps that ran on the calling thread, recomputation included
  [[nodiscard]] std::size_t gradient_count() const;
  /// "41.2 MFLOP, 12 of 18 run again": what the steps computed, the tests of the first one included, and heavy
  /// operations of one block of each type.
  [[nodiscard]] std::string heavy_operations() const;
};

/// What is trained and how; borrowed.
struct Bench {
  Model& model;
  const std::vector<Parameter*>& trained;
  const Objective& objective;
  const execution::MemoryStack& memory;
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

/// Of every run that is compared.
inline constexpr int64_t kSteps = 3;

/// How a loaded model is trained for a proof.
struct Exercise {
  Sizes sizes;  ///< of random data
  int64_t samples = 1, micro_batches = 1;
  at::Device data = at::kCPU;
  uint64_t seed = 0;
  double max_grad_norm = 1.0;
  bool fused_backward = false;
};

/// The same for a model as it was loaded, on random data. Its peak includes what is held since `held`.
Trajectory train_loaded(assembly::LoadedModel& loaded, const Objective& objective, const planner::PeakMark& held,
                        const Exercise& exercise, const Failure& failure = {});

}  // namespace trainer::prove
