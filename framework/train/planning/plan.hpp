/// @file What a run will need, foretold from the headers of its weight files: bytes by device and by phase. Nothing is
/// read but headers, nothing is computed.
#pragma once

#include <train/assembly/assemble.hpp>
#include <train/planning/dry_run.hpp>

#include <optional>
#include <string>
#include <vector>

namespace trainer::train {

/// What training holds on a device, in bytes.
struct DevicePlan {
  std::string device;                ///< as in the recipe, "cuda:0"; several: all of them together
  int64_t weights = 0, adapter = 0;  ///< adapter: its parameters; without one the trained weights are in `weights`
  StepBytes step;
  [[nodiscard]] int64_t resident() const { return weights + adapter + step.optimizer + step.ema; }
  [[nodiscard]] int64_t total() const { return resident() + step.peak; }
};

/// The highest use within one phase of a run.
struct PhasePlan {
  std::string name;               ///< load, cache, train, sample, save
  std::optional<int64_t> device;  ///< peak on the model's device; nullopt: not known
  int64_t host = 0;               ///< tensors in host memory besides those of `device`
  std::string note;               ///< why it is not known, or what was assumed; may be empty
};

struct Plan {
  std::string model, batch;  ///< one line each
  std::vector<DevicePlan> devices;
  std::vector<PhasePlan> phases;
  std::vector<BlockPlan> blocks;
  int64_t program = 0;  ///< RAM of this process with LibTorch opened, in bytes
  bool on_host = true;  ///< the model's device is the host's memory
  /// RAM at its highest: the program, and tensors of the phase that holds most.
  [[nodiscard]] int64_t ram() const;
};

/// For an assembly made with Assembly::Use::plan. Throws Error when the model's files are missing, or when what the
/// recipe names cannot run on shapes; encoders that are missing or cannot only leave their phases open.
Plan make_plan(Assembly& assembly);

}  // namespace trainer::train
