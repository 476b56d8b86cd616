/// @file What a checkpoint holds and how it is put back: trained parameters, optimiser, EMA, step, thread count,
/// recipe.
#pragma once

#include <checkpoint/store.hpp>
#include <metrics/meter.hpp>
#include <optim/adamw.hpp>
#include <optim/ema.hpp>
#include <trainer/sdk/weights.hpp>

#include <string>
#include <vector>

namespace trainer::checkpoint {

/// The changing parts of a run; borrowed.
struct Live {
  const std::vector<Parameter*>& trained;
  optim::AdamW& optimizer;
  optim::Ema* ema = nullptr;  ///< null: none
};

/// Numbers and texts beside the tensors.
struct Progress {
  int64_t step = 0;            ///< optimiser steps done
  int threads = 1;             ///< LibTorch's, restored on resume: reductions depend on it
  metrics::SmoothedMean loss;  ///< for the display only
  std::string recipe;          ///< resolved, as TOML
};

checkpoint::Content capture(const Live& live, const Progress& progress);

/// Counters of a checkpoint, without touching a model. Throws Error (bad_input, CKPT_STATE).
Progress read_progress(const checkpoint::Loaded& loaded);

/// Copies the tensors into the live parts. Throws Error (bad_input) unless names, shapes and dtypes are exactly those
/// of this run.
void restore(const checkpoint::Loaded& loaded, Live& live);

}  // namespace trainer::checkpoint
