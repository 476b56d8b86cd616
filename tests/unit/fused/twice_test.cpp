/// @file Second derivatives of the fused operations: those of the plain operators, never silent constants.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "operations.hpp"

namespace trainer::test {
namespace {

/// Numbers that are neither equal nor in order.
at::Tensor weights_like(const at::Tensor& tensor, double seed) {
  at::Tensor numbers = tensor.detach().to(at::kDouble).clone();
  double* const data = numbers.mutable_data_ptr<double>();
  for (int64_t i = 0; i < numbers.numel(); ++i) data[i] = std::cos(static_cast<double>(i) * (1.7 + seed) + seed);
  return numbers;
}

/// Derivatives by all inputs of a sum of first derivatives of a function that is not linear in the result.
std::vector<at::Tensor> second_derivatives(const Operation& operation, const std::vector<at::Tensor>& inputs,
                                           bool fused) {
  const at::Tensor y = operation.run(inputs, fused).contiguous();
  const std::vector<at::Tensor> first = torch::autograd::grad({(y * y * weights_like(y, 0)).sum()}, inputs, {},
                                                              /*retain_graph=*/true, /*create_graph=*/true);
  at::Tensor sum;
  for (std::size_t i = 0; i < first.size(); ++i) {
    const at::Tensor part = (first[i] * weights_like(first[i].contiguous(), static_cast<double>(i) + 1)).sum();
    sum = sum.defined() ? sum + part : part;
  }
  return torch::autograd::grad({sum}, inputs);
}

class Twice : public ::testing::TestWithParam<Operation> {};

TEST_P(Twice, IsThatOfThePlainOperators) {
  const auto inputs = inputs_of(GetParam(), at::kDouble);
  const auto got = second_derivatives(GetParam(), inputs, true),
             expected = second_derivatives(GetParam(), inputs, false);
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_LE(error(got[i], expected[i]), 1e-9) << i;
}

TEST_P(Twice, OfSomeInputsIsThatOfThePlainOperators) {
  const auto inputs = inputs_of(GetParam(), at::kDouble);
  for (std::size_t wanted = 0; wanted < inputs.size(); ++wanted) {
    Operation one = GetParam();
    one.run = [&](const std::vector<at::Tensor>& trained, bool fused) {
      std::vector<at::Tensor> every;
      for (const at::Tensor& input : inputs) every.push_back(input.detach());
      every[wanted] = trained[0];
      return GetParam().run(every, fused);
    };
    EXPECT_LE(
        error(second_derivatives(one, {inputs[wanted]}, true)[0], second_derivatives(one, {inputs[wanted]}, false)[0]),
        1e-9)
        << wanted;
  }
}

/// A format whose products autograd cannot look into, as those in 8 bits.
class Opaque final : public FrozenWeight {
 public:
  explicit Opaque(at::Tensor weight) : weight_(std::move(weight)) {}
  [[nodiscard]] at::Tensor matmul(const at::Tensor& x) const override {
    const at::NoGradGuard none;
    return x.matmul(weight_.t());
  }
  [[nodiscard]] at::Tensor grad_input(const at::Tensor& g) const override {
    const at::NoGradGuard none;
    return g.matmul(weight_);
  }
  [[nodiscard]] at::Tensor dense(at::ScalarType dtype) const override { return weight_.to(dtype); }
  [[nodiscard]] int64_t bytes() const override { return static_cast<int64_t>(weight_.nbytes()); }
  void to(at::Device device) override { weight_ = weight_.to(device); }
  [[nodiscard]] std::vector<at::Tensor*> tensors() override { return {&weight_}; }

 private:
  at::Tensor weight_;
};

TEST(TwiceOfAFrozenLayer, LooksThroughWhatTheFormatComputes) {
  const auto inputs = inputs_of({"", {{7, 5}, {6, 5}, {2, 5}, {6, 2}}, {}}, at::kDouble);
  const at::Tensor x = inputs[0], weight = inputs[1].detach(), a = inputs[2], b = inputs[3];
  const auto opaque = std::make_shared<Opaque>(weight);
  const auto compare = [](const std::vector<at::Tensor>& of, const auto& frozen, const auto& plain) {
    const Operation both{
        "", {}, [&](const std::vector<at::Tensor>&, bool fused) { return fused ? frozen() : plain(); }};
    const auto got = second_derivatives(both, of, true), expected = second_derivatives(both, of, false);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_LE(error(got[i], expected[i]), 1e-12) << i;
  };
  compare(
      {x}, [&] { return frozen_linear(x, opaque); }, [&] { return x.matmul(weight.t()); });
  compare(
      {x, a, b}, [&] { return low_rank_linear(x, opaque, a, b, 0.7); },
      [&] { return x.matmul(weight.t()) + 0.7 * x.matmul(a.t()).matmul(b.t()); });
}

/// The one operation of a block that has none says so.
TEST(TwiceOfAttention, IsRefused) {
  const auto inputs = inputs_of({"", {{1, 2, 5, 8}}, {}}, at::kFloat);
  const at::Tensor y = at::scaled_dot_product_attention(inputs[0], inputs[0], inputs[0]);
  EXPECT_THROW(
      {
        const auto first = torch::autograd::grad({(y * y).sum()}, inputs, {}, true, true);
        torch::autograd::grad({first[0].sum()}, inputs);
      },
      c10::Error);
}

std::vector<Operation> some_of_every_kind() {
  std::vector<Operation> list;
  for (Operation& operation : operations()) {
    int64_t elements = 0;
    for (const auto& shape : operation.shapes) elements += c10::multiply_integers(shape);
    if (elements < 20000) list.push_back(std::move(operation));
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Operations, Twice, ::testing::ValuesIn(some_of_every_kind()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace trainer::test
