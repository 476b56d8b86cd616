/// @file AdamW against its formula in fp64, its state, and clipping.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <optim/adamw.hpp>
#include <trainer/sdk/error.hpp>

#include <cmath>
#include <functional>
#include <support/parity.hpp>

namespace trainer::optim {
namespace {

constexpr double kLr = 0.01;
const AdamWOptions kOptions{.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1};

/// Decoupled weight decay, Loshchilov & Hutter 2019, algorithm 2; one element.
struct Formula {
  double value, m = 0, v = 0;
  int t = 0;
  void step(double g, double lr) {
    ++t;
    value -= lr * kOptions.weight_decay * value;
    m = kOptions.beta1 * m + (1 - kOptions.beta1) * g;
    v = kOptions.beta2 * v + (1 - kOptions.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(kOptions.beta1, t)), v_hat = v / (1 - std::pow(kOptions.beta2, t));
    value -= lr * m_hat / (std::sqrt(v_hat) + kOptions.eps);
  }
};

Parameter leaf(const std::string& name, const at::Tensor& value) { return {name, value.clone().requires_grad_(true)}; }

double element(const at::Tensor& tensor, int64_t i) { return tensor.detach()[i].item<double>(); }

void expect_error(const std::function<void()>& call, const std::string& message) {
  try {
    call();
    FAIL() << "no error: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::bad_input);
    EXPECT_EQ(error.what(), message);
  }
}

TEST(AdamW, FollowsTheFormulaWithDecayAndMissingGradients) {
  Parameter first = leaf("first", at::tensor({0.5, -2.0, 3.0}, at::kFloat)),
            second = leaf("second", at::tensor({1.5}, at::kFloat));
  AdamW optimizer({&first, &second}, kOptions);
  std::vector<Formula> expected{{0.5}, {-2.0}, {3.0}, {1.5}};
  const double grads[3][4] = {{0.3, -1e-3, 4.0, 0.7}, {-0.2, 5.0, 0.0, 0.0}, {1.0, 1.0, -1.0, -0.4}};
  for (int t = 0; t < 3; ++t) {
    const double lr = kLr * (t + 1);
    first.value().mutable_grad() = at::tensor({grads[t][0], grads[t][1], grads[t][2]}, at::kFloat);
    if (t != 1) second.value().mutable_grad() = at::tensor({grads[t][3]}, at::kFloat);  // in step 2 it has none
    optimizer.step(lr);
    optimizer.zero_grad();
    EXPECT_FALSE(first.value().grad().defined());
    for (int i = 0; i < 4; ++i) expected[static_cast<std::size_t>(i)].step(grads[t][i], lr);
    for (int64_t i = 0; i < 3; ++i)
      EXPECT_NEAR(element(first.value(), i), expected[static_cast<std::size_t>(i)].value, 1e-6) << "step " << t;
    EXPECT_NEAR(element(second.value(), 0), expected[3].value, 1e-6) << "step " << t;
  }
  const NamedTensors state = optimizer.state();
  EXPECT_NEAR(element(state.at("first.exp_avg"), 1), expected[1].m, 1e-6);
  EXPECT_NEAR(element(state.at("first.exp_avg_sq"), 2), expected[2].v, 1e-6);
  EXPECT_EQ(state.at("second.step").item<double>(), 3.0);
}

TEST(AdamW, StateGoesRoundByName) {
  Parameter one = leaf("a", at::arange(4, at::kFloat)), two = leaf("b", at::arange(2, at::kFloat));
  AdamW before({&one, &two}, kOptions);
  const auto step = [](AdamW& optimizer, double scale) {
    for (Parameter* parameter : optimizer.parameters())
      parameter->value().mutable_grad() = parameter->value().detach() * scale + 0.1;
    optimizer.step(kLr);
  };
  step(before, 0.3);
  step(before, -0.2);
  NamedTensors saved;
  for (const auto& [name, tensor] : before.state()) saved[name] = tensor.clone();
  Parameter again_one = leaf("a", one.value().detach()), again_two = leaf("b", two.value().detach());
  AdamW after({&again_two, &again_one}, kOptions);  // another order: the names decide
  after.load_state(saved);
  step(before, 0.7);
  step(after, 0.7);
  EXPECT_TRUE(test::same_bits(one.value().detach(), again_one.value().detach()));
  EXPECT_TRUE(test::same_bits(two.value().detach(), again_two.value().detach()));
  for (const auto& [name, tensor] : before.state())
    EXPECT_TRUE(test::same_bits(tensor, after.state().at(name))) << name;
}

TEST(AdamW, WrongStateIsRefusedAndNothingChanges) {
  Parameter one = leaf("a", at::arange(4, at::kFloat));
  AdamW optimizer({&one}, kOptions);
  const auto state = [&] {
    NamedTensors copy;
    for (const auto& [name, tensor] : optimizer.state()) copy[name] = tensor + 1;
    return copy;
  };
  NamedTensors missing = state(), unknown = state(), shape = state(), dtype = state();
  missing.erase("a.exp_avg");
  unknown["b.exp_avg"] = at::zeros({4});
  shape["a.exp_avg_sq"] = at::zeros({5});
  dtype["a.step"] = at::zeros({}, at::kDouble);
  expect_error([&] { optimizer.load_state(missing); }, "the optimiser state lacks \"a.exp_avg\"");
  expect_error([&] { optimizer.load_state(unknown); }, "the optimiser state has an unknown \"b.exp_avg\"");
  expect_error([&] { optimizer.load_state(shape); }, "the optimiser state \"a.exp_avg_sq\" has another shape or dtype");
  expect_error([&] { optimizer.load_state(dtype); }, "the optimiser state \"a.step\" has another shape or dtype");
  for (const auto& [name, tensor] : optimizer.state())
    EXPECT_TRUE(test::same_bits(tensor, at::zeros(tensor.sizes(), at::kFloat))) << name;
}

TEST(Clip, NormAndFactorAreThoseOfTorch) {
  Parameter a = leaf("a", at::zeros({2})), b = leaf("b", at::zeros({1})), none = leaf("none", at::zeros({3}));
  const std::vector<Parameter*> all{&a, &none, &b};
  a.value().mutable_grad() = at::tensor({3.0, 0.0}, at::kFloat);
  b.value().mutable_grad() = at::tensor({-4.0}, at::kFloat);
  const at::Tensor norm = gradient_norm(all);
  EXPECT_EQ(norm.item<double>(), 5.0);
  clip_gradients(all, norm, 10.0);
  EXPECT_EQ(element(a.value().grad(), 0), 3.0) << "below the limit nothing changes";
  clip_gradients(all, norm, 2.0);
  const float factor = 2.0F / (5.0F + 1e-6F);
  EXPECT_EQ(element(a.value().grad(), 0), static_cast<double>(3.0F * factor));
  EXPECT_EQ(element(b.value().grad(), 0), static_cast<double>(-4.0F * factor));
  EXPECT_FALSE(none.value().grad().defined());
}

TEST(Clip, NoGradientsHaveNormZero) {
  Parameter none = leaf("none", at::zeros({3}));
  const std::vector<Parameter*> all{&none};
  EXPECT_EQ(gradient_norm(all).item<double>(), 0.0);
  clip_gradients(all, gradient_norm(all), 1.0);
}

}  // namespace
}  // namespace trainer::optim
