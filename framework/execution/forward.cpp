#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <c10/core/DeviceGuard.h>
#include <execution/forward.hpp>
#include <trainer/sdk/recompute.hpp>

#include <utility>

namespace trainer::execution {
namespace {

bool finite(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined() && tensor.is_floating_point() && !at::isfinite(tensor).all().item<bool>()) return false;
  return true;
}

/// What enters the epilogue, on its device; without gradients.
Flow after_blocks(Model& model, const NamedTensors& inputs, const MemoryStack& memory, const PlacementPlan& plan) {
  TORCH_CHECK(plan.blocks.size() == model.blocks().size(), "the plan is of another model");
  const c10::DeviceGuard guard(plan.prologue);
  Flow flow = model.prologue(moved(inputs, plan.prologue));
  const Chain chain(model, flow, 0);
  for (const Stage& stage : stages_of(plan)) {
    const c10::DeviceGuard here(stage.device);
    flow = run_blocks(chain, moved(std::move(flow), stage.device), stage.first, stage.end, memory, nullptr);
  }
  return flow;
}

}  // namespace

Flow run_blocks(const Chain& chain, Flow flow, std::size_t first, std::size_t end, const MemoryStack& memory,
                RecomputeState* state) {
  for (std::size_t i = first; i < end; ++i)
    flow.carried = run_block(chain.block(i), flow, memory.run_at(chain.site(i), chain.part(i), state));
  return flow;
}

at::Tensor forward_loss(Model& model, const Objective& objective, const Example& example, const MemoryStack& memory,
                        RecomputeState& state, int64_t micro_batch) {
  Flow flow = model.prologue(example.inputs);
  const Chain chain(model, flow, micro_batch);
  flow = run_blocks(chain, std::move(flow), 0, model.blocks().size(), memory, &state);
  return objective.loss(example, Prediction(model, flow));
}

at::Tensor predict(Model& model, const NamedTensors& inputs, const MemoryStack& memory) {
  const at::NoGradGuard no_grad;
  Flow flow = model.prologue(inputs);
  const Chain chain(model, flow, 0);
  return model.epilogue(run_blocks(chain, std::move(flow), 0, model.blocks().size(), memory, nullptr));
}

at::Tensor predict(Model& model, const NamedTensors& inputs, const MemoryStack& memory, const PlacementPlan& plan) {
  const at::NoGradGuard no_grad;
  const Flow flow = after_blocks(model, inputs, memory, plan);
  const c10::DeviceGuard last(plan.epilogue);
  return model.epilogue(flow);
}

at::Tensor loss_without_gradient(Model& model, const Objective& objective, const Example& example,
                                 const MemoryStack& memory, const PlacementPlan& plan) {
  const at::NoGradGuard no_grad;
  const Example here{moved(example.inputs, plan.prologue), moved(example.targets, plan.epilogue), example.times};
  const Flow flow = after_blocks(model, here.inputs, memory, plan);
  const c10::DeviceGuard last(plan.epilogue);
  return objective.loss(here, Prediction(model, flow));
}

std::string first_non_finite(Model& model, const Example& example, const MemoryStack& memory,
                             const PlacementPlan& plan) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : example.inputs)
    if (!finite({tensor})) return "the input \"" + name + "\"";
  Flow flow = model.prologue(moved(example.inputs, plan.prologue));
  if (!finite(flow.carried) || !finite(flow.shared)) return "the prologue (embedders and modulation)";
  const Chain chain(model, flow, 0);
  for (const Stage& stage : stages_of(plan)) {
    flow = moved(std::move(flow), stage.device);
    for (std::size_t i = stage.first; i < stage.end; ++i) {
      flow = run_blocks(chain, std::move(flow), i, i + 1, memory, nullptr);
      if (!finite(flow.carried)) return "block \"" + model.blocks()[i]->info().name + "\"";
    }
  }
  return finite({model.epilogue(flow)}) ? "" : "the epilogue (final norm and projection)";
}

}  // namespace trainer::execution
