/// @file One training step twice: for real on the CPU, with every byte counted, and on shapes alone.
#pragma once

#include <planning/chain_parts.hpp>
#include <plugin/loader.hpp>

#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

namespace trainer::memory {

/// A FLUX.2 transformer: config.json and weights.
struct Subject {
  std::string name, config;
  std::shared_ptr<WeightSource> weights;
  int64_t channels = 0, text_width = 0;
};

/// The committed miniatures.
std::vector<Subject> miniatures();
/// Made-up weights in bf16, 2 double and 8 single blocks: at the hidden size 768 about 100 M parameters.
Subject made_up(int64_t hidden = 768);

/// How a run trains.
struct Cell {
  std::string checkpointing;  ///< "none", "full", or what selective checkpointing saves; with "+elide" or without
  std::string packing{};      ///< "", or "fp8", "fp8 keep", "fp8 block", "fp8_w8a8", "int8_w8a8"
  at::ScalarType dtype = at::kFloat;
  bool all_parameters = false;  ///< instead of LoRA of rank 16 on the default targets
  int64_t micro_batches = 1;
  bool ema = false;
  bool operator==(const Cell&) const = default;
};
std::string text_of(const Cell& cell);
inline void PrintTo(const Cell& cell, std::ostream* out) { *out << text_of(cell); }

/// Every way to checkpoint x what is trained (LoRA, LoRA on fp8, all parameters) x dtype x one and three micro-batches,
/// and the other ways to pack weights with some of them.
std::vector<Cell> every_cell();
/// A few of them: each way to checkpoint at least once, and with each other every two choices of the other kinds.
std::vector<Cell> covering_cells();

/// Sizes of a step: latents of h x w cells, text tokens, samples of a micro-batch.
struct Size {
  int64_t height = 6, width = 8, text = 16, samples = 1;
};

using Devices = std::span<const at::Device>;

/// What both ways tell of a device.
struct Measured {
  int64_t weights = 0, load_peak = 0, trained = 0;  ///< model; highest while it was built; adapter parameters
  planning::StepBytes step;
  int64_t first_peak = 0;  ///< highest in the first step, above what was there before it; dry: at most
};

/// Counts the second step of a real run, and the peak of the first, which verifies what is recomputed.
Measured measure_real(const Subject& subject, const Cell& cell, const Size& size);
/// `blocks`, when given, is filled with what each block costs.
Measured measure_dry(const Subject& subject, const Cell& cell, const Size& size,
                     std::vector<planning::BlockPlan>* blocks = nullptr);

/// The same split over several devices, as the split placement does it by default: on those that are named, or on as
/// many dry ones. `before_step` is called before every step of the schedule of both training steps.
std::vector<Measured> measure_real(const Subject& subject, const Cell& cell, const Size& size, Devices devices,
                                   const std::function<void(const ScheduleStep&)>& before_step = {});
std::vector<Measured> measure_dry(const Subject& subject, const Cell& cell, const Size& size, std::size_t devices,
                                  std::vector<planning::BlockPlan>* blocks = nullptr);

}  // namespace trainer::memory
