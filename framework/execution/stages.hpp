/// @file A placement's plan as stages: runs of consecutive parts of a model on one device. Prologue, blocks and
/// epilogue are the parts; all that crosses from one stage to the next is the Flow.
#pragma once

#include <trainer/sdk/placement.hpp>

#include <map>
#include <string>
#include <vector>

namespace trainer::execution {

struct Stage {
  at::Device device = at::kCPU;
  std::size_t first = 0, end = 0;  ///< its blocks [first, end) in the chain
  bool prologue = false, epilogue = false;
};

/// In order of execution; neighbours have different devices.
std::vector<Stage> stages_of(const PlacementPlan& plan);

/// Throws PluginError naming the placement unless the plan gives every block one of the request's devices, and its
/// schedule runs every stage of every micro-batch forward and backward once, in an order in which what a step needs is
/// there, and backward in the order of the micro-batches: gradients are then summed alike under every placement.
void check_plan(const PlacementPlan& plan, const PlacementRequest& request, const std::string& placement);

/// Where each layer and each other parameter of a model lives under a plan.
class LayerDevices {
 public:
  LayerDevices() = default;
  /// `model` may have been built from headers alone. Throws Error (bad_recipe) when two blocks on different devices own
  /// one layer, and PluginError naming `placement` when the epilogue is apart from the prologue in a model that does
  /// not say which layers are the epilogue's.
  LayerDevices(Model& model, const PlacementPlan& plan, const std::string& placement);
  /// By the canonical name of a layer or parameter; what is in no block and not the epilogue's is the prologue's.
  [[nodiscard]] at::Device of(const std::string& name) const;

 private:
  at::Device prologue_ = at::kCPU;
  std::map<std::string, at::Device, std::less<>> devices_;
};

/// The flow's tensors on `device`; those that are there already are passed on.
Flow moved(Flow flow, at::Device device);
NamedTensors moved(NamedTensors tensors, at::Device device);

}  // namespace trainer::execution
