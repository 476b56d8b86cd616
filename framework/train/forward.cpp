#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <c10/core/DeviceGuard.h>
#include <train/forward.hpp>
#include <trainer/sdk/recompute.hpp>

namespace trainer::train {
namespace {

Site site_of(Model& model, std::size_t index, int64_t micro_batch) {
  const auto blocks = model.blocks();
  return {blocks[index], static_cast<int64_t>(index), static_cast<int64_t>(blocks.size()), micro_batch};
}

bool finite(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined() && tensor.is_floating_point() && !at::isfinite(tensor).all().item<bool>()) return false;
  return true;
}

}  // namespace

Flow run_blocks(Model& model, Flow flow, std::size_t first, std::size_t end, const MemoryStack& memory,
                RecomputeState* state, int64_t micro_batch) {
  for (std::size_t i = first; i < end; ++i)
    flow.carried = run_block(*model.blocks()[i], flow, memory.run_at(site_of(model, i, micro_batch), state));
  return flow;
}

at::Tensor forward_loss(Model& model, const Objective& objective, const Example& example, const MemoryStack& memory,
                        RecomputeState& state, int64_t micro_batch) {
  const Flow flow =
      run_blocks(model, model.prologue(example.inputs), 0, model.blocks().size(), memory, &state, micro_batch);
  return objective.loss(example, Prediction(model, flow));
}

at::Tensor predict(Model& model, const NamedTensors& inputs, const MemoryStack& memory) {
  const at::NoGradGuard no_grad;
  return model.epilogue(run_blocks(model, model.prologue(inputs), 0, model.blocks().size(), memory, nullptr, 0));
}

at::Tensor predict(Model& model, const NamedTensors& inputs, const MemoryStack& memory, const PlacementPlan& plan) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK(plan.blocks.size() == model.blocks().size(), "the plan is of another model");
  const c10::DeviceGuard guard(plan.prologue);
  Flow flow = model.prologue(moved(inputs, plan.prologue));
  for (const Stage& stage : stages_of(plan)) {
    const c10::DeviceGuard here(stage.device);
    flow = run_blocks(model, moved(std::move(flow), stage.device), stage.first, stage.end, memory, nullptr, 0);
  }
  const c10::DeviceGuard last(plan.epilogue);
  return model.epilogue(flow);
}

std::string first_non_finite(Model& model, const Example& example, const MemoryStack& memory,
                             const PlacementPlan& plan) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : example.inputs)
    if (!finite({tensor})) return "the input \"" + name + "\"";
  Flow flow = model.prologue(moved(example.inputs, plan.prologue));
  if (!finite(flow.carried) || !finite(flow.shared)) return "the prologue (embedders and modulation)";
  for (const Stage& stage : stages_of(plan)) {
    flow = moved(std::move(flow), stage.device);
    for (std::size_t i = stage.first; i < stage.end; ++i) {
      flow = run_blocks(model, std::move(flow), i, i + 1, memory, nullptr, 0);
      if (!finite(flow.carried)) return "block \"" + model.blocks()[i]->info().name + "\"";
    }
  }
  return finite({model.epilogue(flow)}) ? "" : "the epilogue (final norm and projection)";
}

}  // namespace trainer::train
