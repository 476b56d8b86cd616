/// @file The tensor type of the SDK and the two containers that cross the plugin boundary.
/// Headers of the SDK include LibTorch through this file only; sources add the `ATen/ops/*.h` they use.
#pragma once

#include <ATen/core/Tensor.h>
#include <trainer/sdk/abi.h>

#include <map>
#include <string>
#include <vector>

namespace trainer {

/// Tensors by name. An ordered map: iteration order is part of determinism.
using NamedTensors = std::map<std::string, at::Tensor, std::less<>>;

/// The tensors between two blocks of a model. All of them, nothing else: what a block reads of the model's computation
/// is in here or is one of its parameters (design: a captured or cached differentiable tensor loses its gradient when
/// the block is recomputed; see diffusers issue 12776 for the tuple form).
struct Flow {
  std::vector<at::Tensor> carried;  ///< replaced by every block, e.g. {img [B,N,D], txt [B,L,D]}
  std::vector<at::Tensor> shared;   ///< made once per forward, read by every block, e.g. {mod_img [B,6D], rope_cos}
  std::vector<int64_t> sizes;       ///< plain numbers for blocks and epilogue, e.g. {grid height, grid width}
};

}  // namespace trainer
