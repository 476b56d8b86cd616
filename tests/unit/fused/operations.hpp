/// @file The fused operations as the tests of this folder take them: inputs of many shapes, and a call that is fused or
/// made of plain operators.
#pragma once

#include <gtest/gtest.h>
#include <trainer/sdk/ops/fused.hpp>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace trainer::test {

/// One operation on tensors of one shape.
struct Operation {
  std::string name;
  std::vector<std::vector<int64_t>> shapes;  ///< of its differentiable inputs
  /// The operation on them; others (a rotary table) it makes itself.
  std::function<at::Tensor(const std::vector<at::Tensor>& inputs, bool fused)> run;
};
std::ostream& operator<<(std::ostream& out, const Operation& operation);

/// Every operation in shapes that are multiples of a vector and that are not, with one sample, several and none.
std::vector<Operation> operations();

/// Standard normal numbers by seed; requires_grad.
std::vector<at::Tensor> inputs_of(const Operation& operation, at::ScalarType dtype);

/// The result and the gradients of (result * direction).sum(), for the same direction every time.
std::vector<at::Tensor> forward_and_backward(const Operation& operation, const std::vector<at::Tensor>& inputs,
                                             bool fused);

/// Largest difference relative to the largest expected value.
double error(const at::Tensor& value, const at::Tensor& expected);

}  // namespace trainer::test
