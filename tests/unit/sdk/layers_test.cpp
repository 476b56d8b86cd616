/// @file Parameters, substitution, the frozen linear function and linear layers.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/autograd.h>

#include "toy.hpp"

namespace trainer::test {
namespace {

using torch::autograd::grad;

std::shared_ptr<FrozenWeight> dense(const at::Tensor& weight) { return std::make_shared<DenseWeight>(weight); }

TEST(FrozenLinear, SavesNothingButTheHandle) {
  const at::Tensor weight = data(1, {5, 7});
  const auto frozen = dense(weight);
  at::Tensor leaf = data(2, {3, 7}).requires_grad_();
  at::Tensor x = leaf * 2;
  const c10::weak_intrusive_ptr<c10::TensorImpl> input(x.getIntrusivePtr());
  const auto weight_uses = weight.use_count();
  const auto handle_uses = frozen.use_count();
  const at::Tensor y = frozen_linear(x, frozen);
  EXPECT_EQ(weight.use_count(), weight_uses) << "the weight itself is not saved";
  EXPECT_EQ(frozen.use_count(), handle_uses + 1) << "the handle is";
  x.reset();
  EXPECT_TRUE(input.expired()) << "the input is not saved";
  EXPECT_TRUE(same_bits(grad({y.sum()}, {leaf})[0], at::mm(data(3, {3, 5}).fill_(1), weight) * 2));
}

TEST(FrozenLinear, GradientIsThatOfLinearInDouble) {
  const at::Tensor weight = data(1, {5, 7}, at::kDouble), x = data(2, {3, 7}, at::kDouble).requires_grad_();
  const at::Tensor direction = data(3, {3, 5}, at::kDouble);
  const auto frozen = dense(weight);
  const at::Tensor y = frozen_linear(x, frozen);
  EXPECT_TRUE(same_bits(y, at::linear(x, weight)));
  const at::Tensor got = grad({y}, {x}, {direction})[0];
  EXPECT_LT((got - grad({at::linear(x, weight)}, {x}, {direction})[0]).abs().max().item<double>(), 1e-14);
  // gradcheck: central differences of every input element.
  const at::NoGradGuard no_grad;
  for (int64_t i = 0; i < x.numel(); ++i) {
    at::Tensor up = x.detach().clone(), down = up.clone();
    up.view(-1)[i] += 1e-6;
    down.view(-1)[i] -= 1e-6;
    const double slope =
        ((frozen_linear(up, frozen) - frozen_linear(down, frozen)) * direction).sum().item<double>() / 2e-6;
    EXPECT_NEAR(slope, got.view(-1)[i].item<double>(), 1e-8);
  }
}

TEST(FrozenLinear, HasASecondDerivativeOutsideRecomputedBlocks) {
  const at::Tensor weight = data(1, {5, 7}, at::kDouble);
  const auto second = [&](const std::function<at::Tensor(const at::Tensor&)>& layer) {
    const at::Tensor x = data(2, {3, 7}, at::kDouble).requires_grad_();
    const at::Tensor first = grad({layer(x).pow(3).sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    return grad({first.pow(2).sum()}, {x})[0];
  };
  const at::Tensor got = second([&](const at::Tensor& x) { return frozen_linear(x, dense(weight)); });
  const at::Tensor expected = second([&](const at::Tensor& x) { return at::linear(x, weight); });
  EXPECT_LT((got - expected).abs().max().item<double>(), 1e-10 * expected.abs().max().item<double>());
}

TEST(FrozenLinear, RecordsNothingWithoutNeed) {
  const auto frozen = dense(data(1, {5, 7}));
  EXPECT_FALSE(frozen_linear(data(2, {3, 7}), frozen).requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(frozen_linear(data(2, {3, 7}).requires_grad_(), frozen).requires_grad());
}

TEST(FrozenLinear, UnusedOutputGivesNoGradient) {
  const at::Tensor x = data(2, {3, 7}).requires_grad_();
  const at::Tensor y = frozen_linear(x, dense(data(1, {5, 7})));
  EXPECT_FALSE(grad({(x * 2).sum(), y.detach().sum().requires_grad_()}, {y}, {}, {}, false, true)[0].defined());
}

TEST(Parameter, CastIsDifferentiableAndItsGradientIsFp32) {
  Parameter parameter("p", data(1, {4, 4}).requires_grad_());
  EXPECT_TRUE(parameter.get(at::kFloat).is_same(parameter.value())) << "no copy where the dtype is right";
  const at::Tensor low = parameter.get(at::kBFloat16);
  EXPECT_EQ(low.scalar_type(), at::kBFloat16);
  const at::Tensor direction = data(2, {4, 4}, at::kBFloat16);
  (low * direction).sum().backward();
  EXPECT_EQ(parameter.value().grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(same_bits(parameter.value().grad(), direction.to(at::kFloat)));
}

TEST(Parameter, TrainableAndEmpty) {
  EXPECT_TRUE(Parameter("p", data(1, {2}).requires_grad_()).trainable());
  EXPECT_FALSE(Parameter("p", data(1, {2})).trainable());
  EXPECT_FALSE(Parameter("p", at::Tensor()).trainable()) << "headers only";
}

TEST(ParameterSubstitution, NestsAndRestoresAlsoWhenUnwinding) {
  Parameter a("a", data(1, {2})), b("b", data(2, {2}));
  const at::Tensor one = data(3, {2}), two = data(4, {2});
  {
    const ParameterSubstitution outer({&a, &b}, {one, two});
    EXPECT_TRUE(a.get().is_same(one));
    try {
      const ParameterSubstitution inner({&a}, {two});
      EXPECT_TRUE(a.get().is_same(two));
      throw std::runtime_error("unwind");
    } catch (const std::runtime_error&) {
    }
    EXPECT_TRUE(a.get().is_same(one));
    EXPECT_TRUE(b.get().is_same(two));
    EXPECT_FALSE(a.value().is_same(one)) << "the leaf stays the leaf";
  }
  EXPECT_TRUE(a.get().is_same(a.value()));
  EXPECT_THROW(ParameterSubstitution({&a}, {}), c10::Error);
  EXPECT_TRUE(a.get().is_same(a.value()));
}

TEST(Linear, FoldsToTwoDimensionsAndBack) {
  const Linear layer = make_linear("l", 7, 5, at::kFloat, 1);
  const at::Tensor x = data(2, {2, 3, 7});
  const at::Tensor y = layer(x);
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{2, 3, 5}));
  EXPECT_TRUE(same_bits(y.view({6, 5}), layer(x.view({6, 7}))));
  // One route with and without gradients, for non-contiguous inputs too.
  const at::Tensor strided = data(3, {3, 2, 7}).transpose(0, 1);
  EXPECT_TRUE(same_bits(layer(strided.detach().requires_grad_()), layer(strided)));
  EXPECT_THROW(layer(data(4, {2, 6})), c10::Error);
}

TEST(Linear, TrainedWeightAndBias) {
  auto state = std::make_shared<LinearState>();
  state->name = "l";
  state->in = 7;
  state->out = 5;
  state->weight = make_trained("l.weight", {5, 7}, 1);
  state->bias = make_trained("l.bias", {5}, 2);
  const Linear layer(state);
  const at::Tensor x = data(3, {4, 7}, at::kBFloat16);
  const at::Tensor y = layer(x);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  y.sum().backward();
  EXPECT_EQ(state->weight->value().grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(same_bits(state->bias->value().grad(), data(4, {5}).fill_(4)));
  ASSERT_EQ(layer.trainable().size(), 2U);
  EXPECT_EQ(layer.trainable()[0]->name(), "l.weight");
  state->weight.reset();
  EXPECT_THROW(layer(x), c10::Error) << "not loaded";
}

TEST(Linear, AdapterMayBeOff) {
  const Linear with = make_linear("l", 7, 5, at::kFloat, 1, 2), without = make_linear("l", 7, 5, at::kFloat, 1);
  const at::Tensor x = data(3, {4, 7});
  EXPECT_FALSE(same_bits(with(x), without(x)));
  with.state().adapter_enabled = false;
  EXPECT_TRUE(same_bits(with(x), without(x)));
  ASSERT_EQ(with.trainable().size(), 2U) << "still trained, for checkpoints and export";
  EXPECT_EQ(with.trainable()[1]->name(), "l.lora_B.weight");
}

}  // namespace
}  // namespace trainer::test
