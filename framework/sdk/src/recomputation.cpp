#include "recomputation.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>

#include "recompute_checks.hpp"
#include "verifier.hpp"

namespace trainer::recompute {

Recomputation::Recomputation(Block& block_in, const Flow& flow, const BlockRun& run_in,
                             std::vector<Parameter*> parameters_in)
    : block(block_in), run(run_in), shape(flow), parameters(std::move(parameters_in)) {
  if (run.options.save != nullptr || run.options.elide) {
    install_heavy_kernels();
    region = std::make_unique<OpRegion>(block, run.options.save);
  }
  // The flow's own tensors must not be kept alive here: they are saved, or stored, by the node.
  const at::Tensor placeholder = at::empty({0});
  for (auto* list : {&shape.carried, &shape.shared})
    for (at::Tensor& tensor : *list)
      if (tensor.defined()) tensor = placeholder;
}

Recomputation::~Recomputation() = default;

std::vector<at::Tensor> Recomputation::forward(OpRegion::Mode mode, const Tensors& flat) const {
  const OpTrace::Scope tracing(trace);
  std::optional<OpRegion::Scope> scope;
  if (region) scope.emplace(*region, mode);
  return forward_on(block, shape, parameters, flat);
}

std::vector<at::Tensor> Recomputation::record(const Tensors& flat) const {
  return forward(OpRegion::Mode::record, flat);
}

std::vector<at::Tensor> Recomputation::replay(const Tensors& leaves) const {
  const at::AutoGradMode grad_on(true);
  Tensors again = forward(OpRegion::Mode::replay, leaves);
  if (region) region->require_all_replayed();
  return again;
}

std::vector<at::Tensor> Recomputation::gradients(const Tensors& leaves, const Tensors& output_grads) const {
  return gradients_of(replay(leaves), output_grads, leaves);
}

std::vector<at::Tensor> forward_on(Block& block, const Flow& like, const std::vector<Parameter*>& parameters,
                                   const std::vector<at::Tensor>& flat) {
  const std::vector<at::Tensor> substitutes(flat.end() - static_cast<std::ptrdiff_t>(parameters.size()), flat.end());
  const ParameterSubstitution substitution(parameters, substitutes);
  return block.forward(unflatten(like, flat));
}

std::vector<at::Tensor> gradients_of(std::vector<at::Tensor> outputs, std::vector<at::Tensor> output_grads,
                                     const std::vector<at::Tensor>& leaves) {
  std::vector<at::Tensor> reached, received, wanted, result(leaves.size());
  std::erase_if(outputs, [](const at::Tensor& output) { return !output.defined(); });
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!output_grads[i].defined() || !outputs[i].requires_grad()) continue;
    reached.push_back(std::move(outputs[i]));
    received.push_back(std::move(output_grads[i]));
  }
  for (const at::Tensor& leaf : leaves)
    if (leaf.requires_grad()) wanted.push_back(leaf);
  if (reached.empty()) return result;
  const std::vector<at::Tensor> found = torch::autograd::grad(reached, wanted, received, /*retain_graph=*/false,
                                                              /*create_graph=*/false, /*allow_unused=*/true);
  std::size_t next = 0;
  for (std::size_t i = 0; i < leaves.size(); ++i)
    if (leaves[i].requires_grad()) result[i] = found[next++];
  return result;
}

}  // namespace trainer::recompute
