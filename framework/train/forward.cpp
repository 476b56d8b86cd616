#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <train/forward.hpp>
#include <trainer/sdk/recompute.hpp>

namespace trainer::train {
namespace {

Site site_of(Model& model, std::size_t index, int64_t micro_batch) {
  const auto blocks = model.blocks();
  return {blocks[index], static_cast<int64_t>(index), static_cast<int64_t>(blocks.size()), micro_batch};
}

Flow run_blocks(Model& model, Flow flow, const MemoryStack& memory, VerifiedSites* verified, int64_t micro_batch) {
  for (std::size_t i = 0; i < model.blocks().size(); ++i)
    flow.carried = run_block(*model.blocks()[i], flow, memory.run_at(site_of(model, i, micro_batch), verified));
  return flow;
}

bool finite(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined() && tensor.is_floating_point() && !at::isfinite(tensor).all().item<bool>()) return false;
  return true;
}

}  // namespace

at::Tensor forward_loss(Model& model, const Objective& objective, const Example& example, const MemoryStack& memory,
                        VerifiedSites& verified, int64_t micro_batch) {
  const Flow flow = run_blocks(model, model.prologue(example.inputs), memory, &verified, micro_batch);
  return objective.loss(example, [&] { return model.epilogue(flow); });
}

at::Tensor predict(Model& model, const NamedTensors& inputs, const MemoryStack& memory) {
  const at::NoGradGuard no_grad;
  return model.epilogue(run_blocks(model, model.prologue(inputs), memory, nullptr, 0));
}

std::string first_non_finite(Model& model, const Example& example, const MemoryStack& memory) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : example.inputs)
    if (!finite({tensor})) return "the input \"" + name + "\"";
  Flow flow = model.prologue(example.inputs);
  if (!finite(flow.carried) || !finite(flow.shared)) return "the prologue (embedders and modulation)";
  for (std::size_t i = 0; i < model.blocks().size(); ++i) {
    Block& block = *model.blocks()[i];
    flow.carried = run_block(block, flow, memory.run_at(site_of(model, i, 0), nullptr));
    if (!finite(flow.carried)) return "block \"" + block.info().name + "\"";
  }
  return finite({model.epilogue(flow)}) ? "" : "the epilogue (final norm and projection)";
}

}  // namespace trainer::train
