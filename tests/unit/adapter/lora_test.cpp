/// @file LoRA: first values, what it adds to a layer, its gradients, its export.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <adapter/inject.hpp>

#include <cmath>
#include <execution/keyed_random.hpp>
#include <support/components.hpp>
#include <support/parity.hpp>

namespace trainer::adapter {
namespace {

constexpr int64_t kIn = 5, kOut = 7;

at::Tensor random(uint64_t key, at::IntArrayRef shape) {
  return execution::keyed_normal(KeyedRng(key, RngStream::synthetic), shape);
}

/// One frozen layer of `dtype` with LoRA.
struct Fixture {
  explicit Fixture(const Table& options = {}, at::ScalarType dtype = at::kFloat, int64_t in = kIn, int64_t out = kOut)
      : lora(testing::lora(options)) {
    auto state = std::make_shared<LinearState>();
    state->name = "layer";
    state->in = in;
    state->out = out;
    weight = random(1, {out, in}).to(dtype);
    state->frozen = std::make_shared<DenseWeight>(weight);
    layer = Linear(state);
    parameters = inject(*lora, {&layer, 1}, 3, at::kCPU);
  }
  at::Tensor& a() { return parameters[0]->value(); }
  at::Tensor& b() { return parameters[1]->value(); }
  void randomise_b() {
    const at::NoGradGuard no_grad;
    b().copy_(random(2, b().sizes()));
  }
  std::unique_ptr<Adapter> lora;
  at::Tensor weight;
  Linear layer;
  std::vector<Parameter*> parameters;
};

TEST(LoraInit, KaimingFillsItsBoundAndBIsZero) {
  Fixture f({{"rank", {int64_t{64}}}}, at::kFloat, 400, 3);
  const double bound = 1 / std::sqrt(400.0);
  EXPECT_LE(f.a().abs().max().item<double>(), bound);
  EXPECT_GT(f.a().abs().max().item<double>(), 0.99 * bound);
  EXPECT_NEAR(f.a().mean().item<double>(), 0, 0.02 * bound);
  EXPECT_NEAR((f.a() * f.a()).mean().item<double>(), bound * bound / 3, 0.02 * bound * bound);
  EXPECT_TRUE(test::same_bits(f.b().detach(), at::zeros({3, 64}, at::kFloat)));
}

TEST(LoraInit, GaussianHasTheSpreadOfTheInverseRank) {
  Fixture f({{"rank", {int64_t{64}}}, {"init", {std::string("gaussian")}}}, at::kFloat, 400, 3);
  EXPECT_NEAR(f.a().mean().item<double>(), 0, 0.02 / 64);
  EXPECT_NEAR(std::sqrt((f.a() * f.a()).mean().item<double>()), 1.0 / 64, 0.02 / 64);
  EXPECT_GT(f.a().abs().max().item<double>(), 3.0 / 64) << "no uniform numbers";
  EXPECT_TRUE(test::same_bits(f.b().detach(), at::zeros({3, 64}, at::kFloat)));
}

TEST(LoraLayer, ZeroBChangesNoBit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Fixture f({}, dtype);
    const at::Tensor x = random(9, {2, 11, kIn}).to(dtype);
    const at::Tensor with = f.layer(x).detach();
    f.layer.state().adapter_enabled = false;
    EXPECT_TRUE(test::same_bits(with, f.layer(x))) << c10::toString(dtype);
    EXPECT_EQ(with.scalar_type(), dtype);
  }
}

TEST(LoraLayer, AddsAlphaOverRankTimesBA) {
  Fixture f({{"rank", {int64_t{4}}}, {"alpha", {6.0}}});
  f.randomise_b();
  const at::Tensor x = random(9, {2, 3, kIn});
  const at::Tensor dense =
      (f.weight.to(at::kDouble) + 1.5 * at::mm(f.b().detach().to(at::kDouble), f.a().detach().to(at::kDouble)));
  const at::Tensor expected = at::mm(x.reshape({-1, kIn}).to(at::kDouble), dense.t()).view({2, 3, kOut});
  EXPECT_LE(test::max_error(f.layer(x).detach(), expected), 1e-6);
  f.layer.state().adapter_enabled = false;
  EXPECT_TRUE(test::same_bits(f.layer(x), at::mm(x.reshape({-1, kIn}), f.weight.t()).view({2, 3, kOut}))) << "off";
}

TEST(LoraLayer, OverABf16BaseItComputesInFp32) {
  Fixture f({}, at::kBFloat16);
  f.randomise_b();
  const at::Tensor x = random(9, {6, kIn}).to(at::kBFloat16);
  const at::Tensor base = at::mm(x, f.weight.t()).to(at::kFloat);
  const at::Tensor added = at::mm(at::mm(x.to(at::kFloat), f.a().detach().t()), f.b().detach().t());
  EXPECT_LE(test::max_error(f.layer(x).detach(), (base + added).to(at::kBFloat16)), 0.004) << "one rounding at the end";
  EXPECT_EQ(f.layer(x).scalar_type(), at::kBFloat16);
}

TEST(LoraLayer, GradientsAreThoseOfTheFormula) {
  Fixture f({{"rank", {int64_t{4}}}, {"alpha", {6.0}}});
  f.randomise_b();
  const at::Tensor x = random(9, {6, kIn}), g = random(10, {6, kOut});
  (f.layer(x) * g).sum().backward();
  const at::Tensor xd = x.to(at::kDouble), gd = g.to(at::kDouble);
  const at::Tensor ad = f.a().detach().to(at::kDouble), bd = f.b().detach().to(at::kDouble);
  EXPECT_LE(test::max_error(f.b().grad(), 1.5 * at::mm(gd.t(), at::mm(xd, ad.t()))), 1e-6);
  EXPECT_LE(test::max_error(f.a().grad(), 1.5 * at::mm(at::mm(bd.t(), gd.t()), xd)), 1e-6);
}

/// Input and both matrices, where the base is bf16 and the adapter fp32; what needs no gradient gets none.
TEST(LoraLayer, GradientsOverABf16Base) {
  Fixture f({{"rank", {int64_t{4}}}, {"alpha", {6.0}}}, at::kBFloat16);
  f.randomise_b();
  const at::Tensor x = random(9, {6, kIn}).to(at::kBFloat16).requires_grad_(true);
  const at::Tensor g = random(10, {6, kOut}).to(at::kBFloat16);
  f.a().requires_grad_(false);
  f.layer(x).backward(g);
  EXPECT_FALSE(f.a().grad().defined()) << "A is frozen";
  const at::Tensor xd = x.detach().to(at::kDouble), gd = g.to(at::kDouble), wd = f.weight.to(at::kDouble);
  const at::Tensor ad = f.a().detach().to(at::kDouble), bd = f.b().detach().to(at::kDouble);
  EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
  EXPECT_LE(test::max_error(x.grad(), at::mm(gd, wd) + 1.5 * at::mm(at::mm(gd, bd), ad)), 0.02);
  EXPECT_EQ(f.b().grad().scalar_type(), at::kFloat);
  EXPECT_LE(test::max_error(f.b().grad(), 1.5 * at::mm(gd.t(), at::mm(xd, ad.t()))), 1e-6) << "not rounded to bf16";
}

TEST(LoraExport, FoldsAlphaIntoB) {
  Fixture f({{"rank", {int64_t{4}}}, {"alpha", {6.0}}});
  f.randomise_b();
  const NamedTensors tensors = f.lora->export_layer(f.layer.state());
  ASSERT_EQ(tensors.size(), 2U);
  EXPECT_TRUE(test::same_bits(tensors.at("layer.lora_A.weight"), f.a().detach()));
  EXPECT_TRUE(test::same_bits(tensors.at("layer.lora_B.weight"), f.b().detach() * 1.5));
  EXPECT_FALSE(tensors.at("layer.lora_B.weight").requires_grad());
}

TEST(Lora, TellsWhatItIsAndWhatItTargets) {
  EXPECT_EQ(testing::lora({{"rank", {int64_t{16}}}, {"alpha", {16.0}}})->describe(), "LoRA rank 16, alpha 16");
  EXPECT_EQ(testing::lora({{"rank", {int64_t{3}}}, {"alpha", {0.5}}})->describe(), "LoRA rank 3, alpha 0.5");
  EXPECT_EQ(testing::lora({{"alpha", {100.0}}})->describe(), "LoRA rank 4, alpha 100");
  EXPECT_EQ(testing::lora()->targets(), std::vector<std::string>{});
  EXPECT_EQ(testing::lora({{"targets", {std::string("all")}}})->targets(), std::vector<std::string>{"*"});
  EXPECT_EQ(testing::lora({{"targets", {std::string("to_q")}}})->targets(), std::vector<std::string>{"to_q"});
  EXPECT_EQ(testing::lora({{"targets", {Array{{std::string("a")}, {std::string("b")}}}}})->targets(),
            (std::vector<std::string>{"a", "b"}));
}

}  // namespace
}  // namespace trainer::adapter
