/// @file A copy of a tensor that no byte counter sees: what a measurement keeps for itself is no part of what it
/// measures.
#pragma once

#include <ATen/core/Tensor.h>

namespace trainer::planner {

/// Same numbers, shape and dtype on the CPU, contiguous, in memory of malloc. No autograd history.
at::Tensor uncounted_copy(const at::Tensor& tensor);

}  // namespace trainer::planner
