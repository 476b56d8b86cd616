#include <execution/stages.hpp>

#include <algorithm>

namespace trainer::execution {
namespace {

/// What a schedule has done so far, one entry a stage and micro-batch.
class Progress {
 public:
  Progress(std::size_t stages, int64_t micro_batches)
      : forward_(stages, std::vector<bool>(static_cast<std::size_t>(micro_batches), false)),
        backward_(forward_),
        next_(stages, 0) {}

  /// Whether the step may come now; notes it.
  bool take(const ScheduleStep& step) {
    const auto stages = static_cast<int64_t>(forward_.size());
    if (step.stage < 0 || step.stage >= stages || step.micro_batch < 0 ||
        step.micro_batch >= static_cast<int64_t>(forward_[0].size()))
      return false;
    const auto s = static_cast<std::size_t>(step.stage), m = static_cast<std::size_t>(step.micro_batch);
    if (step.pass == Pass::forward) {
      if (forward_[s][m] || (s > 0 && !forward_[s - 1][m])) return false;
      forward_[s][m] = true;
      return true;
    }
    if (!forward_[s][m] || (s + 1 < backward_.size() && !backward_[s + 1][m]) || next_[s] != step.micro_batch)
      return false;
    backward_[s][m] = true;
    ++next_[s];
    return true;
  }
  [[nodiscard]] bool complete() const {
    return std::all_of(backward_.begin(), backward_.end(), [](const std::vector<bool>& stage) {
      return std::all_of(stage.begin(), stage.end(), [](bool done) { return done; });
    });
  }

 private:
  std::vector<std::vector<bool>> forward_, backward_;
  std::vector<int64_t> next_;  ///< micro-batch whose backward comes next, by stage
};

}  // namespace

std::vector<Stage> stages_of(const PlacementPlan& plan) {
  std::vector<Stage> stages{{plan.prologue, 0, 0, /*prologue=*/true, false}};
  const auto open = [&](at::Device device, std::size_t block) {
    if (stages.back().device != device) stages.push_back({device, block, block, false, false});
  };
  for (std::size_t i = 0; i < plan.blocks.size(); ++i) {
    open(plan.blocks[i], i);
    stages.back().end = i + 1;
  }
  open(plan.epilogue, plan.blocks.size());
  stages.back().epilogue = true;
  return stages;
}

void check_plan(const PlacementPlan& plan, const PlacementRequest& request, const std::string& placement) {
  const auto fail = [&](const std::string& what) { throw PluginError(placement, "plan", what, ExitCode::bad_recipe); };
  if (plan.blocks.size() != request.blocks.size())
    fail("it places " + std::to_string(plan.blocks.size()) + " blocks of " + std::to_string(request.blocks.size()));
  std::vector<at::Device> used = plan.blocks;
  used.insert(used.end(), {plan.prologue, plan.epilogue});
  for (const at::Device device : used)
    if (std::find(request.devices.begin(), request.devices.end(), device) == request.devices.end())
      fail("it uses " + device.str() + ", which placement.devices does not name");
  Progress progress(stages_of(plan).size(), request.micro_batches);
  for (const ScheduleStep& step : plan.schedule)
    if (!progress.take(step))
      fail("its schedule runs stage " + std::to_string(step.stage) + " of micro-batch " +
           std::to_string(step.micro_batch) + (step.pass == Pass::forward ? " forward" : " backward") +
           " where it cannot run: a part that is not there, twice, before what it needs, or backward out of order");
  if (!progress.complete()) fail("its schedule leaves out a stage of a micro-batch");
}

LayerDevices::LayerDevices(Model& model, const PlacementPlan& plan, const std::string& placement)
    : prologue_(plan.prologue) {
  const auto add = [&](const std::string& name, at::Device device) {
    const auto [it, is_new] = devices_.emplace(name, device);
    if (!is_new && it->second != device)
      throw Error(ExitCode::bad_recipe, "placement: the layer \"" + name + "\" is part of blocks on " +
                                            it->second.str() + " and " + device.str() + "; they must stay together");
  };
  const std::optional<std::vector<std::string>> epilogue = model.epilogue_layers();
  if (!epilogue && plan.epilogue != plan.prologue)
    throw PluginError(placement, "plan",
                      "it takes the epilogue apart from the prologue, but the model does not say which layers are the "
                      "epilogue's (Model::epilogue_layers)",
                      ExitCode::bad_recipe);
  for (const std::string& name : epilogue.value_or(std::vector<std::string>{})) add(name, plan.epilogue);
  const auto blocks = model.blocks();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    for (const Linear& linear : blocks[i]->info().linears) add(linear.name(), plan.blocks.at(i));
    for (const ParameterPtr& parameter : blocks[i]->info().parameters) add(parameter->name(), plan.blocks.at(i));
  }
}

at::Device LayerDevices::of(const std::string& name) const {
  const auto it = devices_.find(name);
  return it == devices_.end() ? prologue_ : it->second;
}

Flow moved(Flow flow, at::Device device) {
  for (auto* list : {&flow.carried, &flow.shared})
    for (at::Tensor& tensor : *list)
      if (tensor.defined()) tensor = tensor.to(device);
  return flow;
}

NamedTensors moved(NamedTensors tensors, at::Device device) {
  for (auto& [name, tensor] : tensors)
    if (tensor.defined()) tensor = tensor.to(device);
  return tensors;
}

}  // namespace trainer::execution
