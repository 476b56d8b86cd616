/// @file Where a model lives and in which order its parts run. A placement returns data; the framework executes it.
#pragma once

#include <trainer/sdk/memory.hpp>

namespace trainer {

/// One entry of a schedule: a stage (a run of consecutive parts on one device) of one micro-batch in one direction.
struct ScheduleStep {
  Pass pass = Pass::forward;
  int64_t stage = 0;
  int64_t micro_batch = 0;
  bool operator==(const ScheduleStep&) const = default;
};

struct PlacementPlan {
  at::Device prologue = at::kCPU;
  std::vector<at::Device> blocks;  ///< one per block, equal devices consecutive
  at::Device epilogue = at::kCPU;
  /// Every stage of every micro-batch once forward and once backward, backward after its forward.
  std::vector<ScheduleStep> schedule;
};

/// What a placement weighs: one part of the model, from its headers alone.
struct PartCost {
  std::string name;          ///< "prologue", a block's name, "epilogue"
  double flops = 0;          ///< of one forward per token of the sequence
  int64_t weight_bytes = 0;  ///< as the run will hold them (packed where a strategy packs), without adapter
};

struct PlacementRequest {
  PartCost prologue, epilogue;
  std::vector<PartCost> blocks;  ///< in order of execution
  bool epilogue_apart = false;   ///< whether the epilogue may be on another device than the prologue
  int64_t micro_batches = 1;
  std::vector<at::Device> devices;  ///< as in the recipe, at least one
};

class TRAINER_API Placement {
 public:
  virtual ~Placement();
  /// Throws Error (bad_recipe) when the request cannot be satisfied, with the numbers.
  [[nodiscard]] virtual PlacementPlan plan(const PlacementRequest& request) const = 0;
};

}  // namespace trainer
