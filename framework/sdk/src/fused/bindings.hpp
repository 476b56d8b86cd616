/// @file Short helpers of the files that join kernels to tensors; these include <ATen/core/dispatch/Dispatcher.h>
/// first. Private to the SDK.
#pragma once

#include <kernels/fused.h>

#include "operators.hpp"

namespace trainer::fused {

inline kernels::Dtype dtype_of(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kDouble) return kernels::Dtype::f64;
  return tensor.scalar_type() == at::kFloat ? kernels::Dtype::f32 : kernels::Dtype::bf16;
}

/// The operator of that name and signature.
template <typename Signature>
c10::TypedOperatorHandle<Signature> operator_of(const char* name) {
  install_operators();
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").template typed<Signature>();
}

}  // namespace trainer::fused
