/// @file The simulated devices compute what the CPU computes, bit for bit, gradients too.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>

#include "device_fixture.hpp"

namespace trainer::sim {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Case {
  std::string name;
  Tensors inputs;
  std::function<at::Tensor(const Tensors&)> compute;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

struct Outcome {
  at::Tensor result;
  Tensors gradients;
};
Outcome run(const Case& one, c10::Device device) {
  Tensors inputs;
  for (const at::Tensor& tensor : one.inputs)
    inputs.push_back(tensor.detach()
                         .to(device, tensor.scalar_type(), false, /*copy=*/true)
                         .requires_grad_(tensor.is_floating_point()));
  Outcome outcome;
  const at::Tensor y = one.compute(inputs);
  EXPECT_EQ(y.device(), device);
  outcome.result = y.detach().cpu();
  y.to(at::kFloat).square().sum().backward();
  for (const at::Tensor& input : inputs) {
    if (!input.grad().defined()) continue;
    EXPECT_EQ(input.grad().device(), device);
    outcome.gradients.push_back(input.grad().cpu());
  }
  return outcome;
}

class SameAsCpu : public ::testing::TestWithParam<Case> {};

TEST_P(SameAsCpu, BitForBit) {
  init_once();
  const Outcome cpu = run(GetParam(), at::kCPU), sim = run(GetParam(), device(1));
  EXPECT_TRUE(at::equal(cpu.result, sim.result));
  ASSERT_EQ(cpu.gradients.size(), sim.gradients.size());
  for (std::size_t i = 0; i < cpu.gradients.size(); ++i)
    EXPECT_TRUE(at::equal(cpu.gradients[i], sim.gradients[i])) << "gradient " << i;
}

std::vector<Case> cases() {
  const auto r = [](at::IntArrayRef shape) { return at::randn(shape); };
  const auto half = [&](at::IntArrayRef shape) { return r(shape).to(at::kBFloat16); };
  return {
      {"matmuls",
       {r({4, 5}), r({6, 5}), r({6}), r({2, 6, 3})},
       [](const Tensors& v) {
         return at::bmm(at::linear(v[0], v[1], v[2]).expand({2, 4, 6}), v[3]);
       }},
      {"bf16 matmul", {half({4, 8}), half({8, 8})}, [](const Tensors& v) { return v[0].mm(v[1]).to(at::kFloat); }},
      {"layer norm",
       {r({4, 8}), r({8}), r({8})},
       [](const Tensors& v) { return at::layer_norm(v[0], {8}, v[1], v[2]); }},
      {"rms norm", {half({4, 8}), half({8})}, [](const Tensors& v) { return at::rms_norm(v[0], {8}, v[1], 1e-6); }},
      {"group norm",
       {r({2, 8, 4, 4}), r({8}), r({8})},
       [](const Tensors& v) { return at::group_norm(v[0], 4, v[1], v[2]); }},
      {"convolution",
       {r({2, 3, 8, 8}), r({4, 3, 3, 3}), r({4})},
       [](const Tensors& v) { return at::conv2d(v[0], v[1], v[2], 1, 1); }},
      {"embedding", {at::randint(0, 7, {2, 5}), r({7, 4})}, [](const Tensors& v) { return at::embedding(v[1], v[0]); }},
      {"attention",
       {r({2, 3, 10, 8}), r({2, 3, 12, 8}), r({2, 3, 12, 8})},
       [](const Tensors& v) { return at::scaled_dot_product_attention(v[0], v[1], v[2]); }},
      {"bf16 attention",
       {half({2, 3, 10, 8}), half({2, 3, 12, 8}), half({2, 3, 12, 8})},
       [](const Tensors& v) { return at::scaled_dot_product_attention(v[0], v[1], v[2]); }},
      {"3-D attention",
       {r({2, 10, 8})},
       [](const Tensors& v) { return at::scaled_dot_product_attention(v[0], v[0], v[0]); }},
      {"elementwise",
       {r({3, 5})},
       [](const Tensors& v) { return at::silu(v[0]) * at::softmax(v[0], -1) + v[0].clamp(-1, 1) * 2.5; }},
      {"cat, chunk, views",
       {r({4, 6}), r({4, 2})},
       [](const Tensors& v) {
         const auto parts = at::cat({v[0], v[1]}, 1).chunk(4, 1);
         return at::cat({parts[3], parts[0]}, 0).t().reshape({-1}).narrow(0, 1, 9);
       }},
      {"index",
       {r({4, 6})},
       [](const Tensors& v) {
         return v[0].index_select(0, at::ones({2}, v[0].options().dtype(at::kLong).requires_grad(false)));
       }},
      {"loss", {r({3, 5}), r({3, 5})}, [](const Tensors& v) { return at::mse_loss(v[0], v[1]); }},
      {"transposed copy", {r({3, 5})}, [](const Tensors& v) { return v[0].t().contiguous().to(at::kBFloat16); }},
  };
}
INSTANTIATE_TEST_SUITE_P(Operations, SameAsCpu, ::testing::ValuesIn(cases()), [](const auto& info) {
  std::string name = info.param.name;
  std::erase_if(name, [](unsigned char c) { return std::isalnum(c) == 0; });
  return name;
});

TEST(Operations, TheFusedOptimiserIsTheCpus) {
  init_once();
  const Tensors start{at::randn({5}), at::randn({5}), at::zeros({5}), at::ones({5}), at::ones({})};
  const auto step = [&](c10::Device where) {
    Tensors t;
    for (const at::Tensor& tensor : start) t.push_back(tensor.to(where, at::kFloat, false, /*copy=*/true));
    at::_fused_adamw_({t[0]}, {t[1]}, {t[2]}, {t[3]}, {}, {t[4]}, 1e-3, .9, .99, .01, 1e-8, false, false);
    return at::cat({t[0], t[2], t[3]}).cpu();
  };
  EXPECT_TRUE(at::equal(step(at::kCPU), step(device(1))));
}

TEST(Operations, AGraphOverTwoDevicesEndsWhereItBegan) {
  init_once();
  const auto run_on = [](c10::Device first, c10::Device second, const at::Tensor& x, const at::Tensor& w) {
    const at::Tensor a = w.to(first).detach().requires_grad_(), b = w.to(second).detach().requires_grad_();
    x.to(first).mm(a).to(second).mm(b).square().sum().backward();
    return at::cat({a.grad().cpu(), b.grad().cpu()});
  };
  const at::Tensor x = at::randn({3, 4}), w = at::randn({4, 4});
  EXPECT_TRUE(at::equal(run_on(at::kCPU, at::kCPU, x, w), run_on(device(0), device(2), x, w)));
}

}  // namespace
}  // namespace trainer::sim
