/// @file What a run will need, foretold from the headers of its weight files: bytes by device and by phase, and how
/// busy its schedule keeps the devices. Nothing is read but headers, nothing is computed.
#pragma once

#include <assembly/assemble.hpp>
#include <planning/chain_parts.hpp>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace trainer::planning {

/// What training holds on a device, in bytes, and what the device does.
struct DevicePlan {
  std::string device;                ///< as in the recipe, "cuda:0"
  std::string parts;                 ///< "prologue, double.0 to single.19"
  int64_t weights = 0, adapter = 0;  ///< adapter: its parameters; without one the trained weights are in `weights`
  int64_t data = 0;                  ///< what the run keeps of prompts and samples (run_data.hpp)
  StepBytes step;                    ///< of a step after the first
  int64_t first = 0;     ///< at most what blocks need in the first step, which verifies them (chain_parts.hpp)
  int64_t exchange = 0;  ///< of several processes: gradients on their way to the others, and what came back
  double flops = 0;      ///< of a step: matrix products, convolutions and attentions, recomputed ones included
  double busy = 0;       ///< share of a step in which it computes, copies taken as free
  std::optional<double> seconds{};  ///< in which it does, when its speed is given
  [[nodiscard]] int64_t resident() const { return weights + adapter + data + step.optimizer + step.ema; }
  /// At most, in any step.
  [[nodiscard]] int64_t total() const { return resident() + std::max(first, step.peak) + exchange; }
  /// How much more the first step takes than a later one.
  [[nodiscard]] int64_t first_step() const { return std::max<int64_t>(first - step.peak, 0); }
};

/// The highest use within one phase of a run.
struct PhasePlan {
  std::string name;                           ///< load, cache, train, sample, save
  std::optional<std::vector<int64_t>> bytes;  ///< peak on each of Plan::memories; nullopt: not known
  int64_t host = 0;                           ///< tensors in the host's memory besides
  std::string note;                           ///< why it is not known, or what was assumed; may be empty
};

/// How long a step takes, by its FLOPs: memory traffic, launches and copies take no time here.
struct StepTime {
  double makespan = 0, serial = 0;  ///< of the schedule, and of its work one step after the other
  bool seconds = false;             ///< else FLOPs, for devices of one speed
  double plain = 1;                 ///< work in relation to that of a step without recomputation
};

/// One of several processes that share every step.
struct RankPlan {
  int ranks = 1;
  distributed::Share share;
  int64_t reduced = 0;  ///< bytes of gradients (fp32) that the processes make the mean of, a step
  /// Bytes that each sends a step, and as many that it receives: the sums of its slice, then all slices.
  [[nodiscard]] int64_t sent() const { return 2 * (reduced - reduced / ranks); }
};

/// One validation, and how many there are.
struct ValidationPlan {
  std::optional<int64_t> samples;   ///< nullopt: a data folder is not there
  int64_t timesteps = 0;            ///< for each sample
  int64_t times = 0;                ///< in the run
  double flops = 0;                 ///< of one sample at one timestep
  std::optional<double> seconds{};  ///< of a validation, by one process, when samples and speeds are known
};

struct Plan {
  std::string model, batch;           ///< one line each
  std::vector<DevicePlan> devices;    ///< in the order of placement.devices
  std::vector<std::string> memories;  ///< names of Devices::memories
  std::size_t host = 0;               ///< which of them is the host's
  std::vector<PhasePlan> phases;
  std::vector<BlockPlan> blocks;
  StepTime time;
  std::optional<ValidationPlan> validation{};  ///< where the recipe holds samples out, and they can run on shapes
  RankPlan rank;                               ///< the one that all else is about
  int64_t program = 0;                         ///< RAM of a run's process beside its tensors, at most, in bytes
  /// RAM at its highest: the program, and tensors of the phase that holds most; nullopt when a phase is not known.
  [[nodiscard]] std::optional<int64_t> ram() const;
};

/// For an assembly on shapes alone, for one of `ranks` processes (the assembly's place is one of as
/// many). `speeds`: FLOPs a second of each device, one for all, or none. Throws Error when the model's files are
/// missing, or when what the recipe names cannot run on shapes; encoders that are missing or cannot only leave their
/// phases open.
Plan make_plan(assembly::Assembly& assembly, const std::vector<double>& speeds, int ranks = 1);

}  // namespace trainer::planning
