/// @file See twice.hpp.
#include "twice.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>
#include <torch/csrc/autograd/autograd.h>

namespace trainer::fused {

bool is_differentiated() { return at::GradMode::is_enabled(); }

std::vector<at::Tensor> plain_gradients(const std::function<at::Tensor(const std::vector<at::Tensor>&)>& plain,
                                        const std::vector<at::Tensor>& inputs, const at::Tensor& grad) {
  std::vector<at::Tensor> given, wanted;
  for (const at::Tensor& input : inputs) {
    // One tensor may be two inputs; its aliases are told apart.
    given.push_back(input.requires_grad() ? at::alias(input) : input);
    if (input.requires_grad()) wanted.push_back(given.back());
  }
  std::vector<at::Tensor> found(inputs.size());
  if (wanted.empty()) return found;
  const std::vector<at::Tensor> grads = torch::autograd::grad({plain(given)}, wanted, {grad}, /*retain_graph=*/true,
                                                              /*create_graph=*/true, /*allow_unused=*/true);
  for (std::size_t i = 0, next = 0; i < inputs.size(); ++i)
    if (inputs[i].requires_grad()) found[i] = grads[next++];
  return found;
}

}  // namespace trainer::fused
