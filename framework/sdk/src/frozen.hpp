/// @file What the nodes that compute with a frozen weight share. Private to the SDK.
#pragma once

#include <trainer/sdk/layers.hpp>

namespace torch::autograd {
struct AutogradContext;
}

namespace trainer {

/// A node keeps the handle alone: the weight may be packed, moved or dequantised anew in backward.
void keep_weight(torch::autograd::AutogradContext& context, const std::shared_ptr<FrozenWeight>& weight);
std::shared_ptr<FrozenWeight> kept_weight(torch::autograd::AutogradContext& context);

/// g W, the gradient of frozen_linear's input; it can be differentiated where gradients are recorded, whatever the
/// format computes with.
at::Tensor frozen_linear_input(const at::Tensor& g, const std::shared_ptr<FrozenWeight>& weight);

/// x W^T as one heavy operation "frozen_linear" of the block that runs: a kept or dead product skips its
/// dequantisation, and nothing that the weight does inside counts again.
at::Tensor heavy_matmul(const FrozenWeight& weight, const at::Tensor& x);

}  // namespace trainer
