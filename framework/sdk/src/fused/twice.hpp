/// @file Gradients that are to be differentiated again (create_graph): hand-written backwards end the graph, so those
/// are of the plain operators. Private to this folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace trainer::fused {

/// Whether the backward that runs is to be differentiated.
bool is_differentiated();

/// Gradients of plain(inputs) for `grad`, themselves differentiable; undefined for inputs that need none. The plain
/// operators are run again.
std::vector<at::Tensor> plain_gradients(const std::function<at::Tensor(const std::vector<at::Tensor>&)>& plain,
                                        const std::vector<at::Tensor>& inputs, const at::Tensor& grad);

}  // namespace trainer::fused
