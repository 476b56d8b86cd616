// Attention of our own kernel against fp64, and that what it does not take is LibTorch's as before.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <matmul/attention.hpp>
#include <matmul/matmul.hpp>
#include <trainer/sdk/ops/products.hpp>

#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

namespace trainer::matmul {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

/// samples, heads, queries, keys, width.
using Sizes = std::array<int64_t, 5>;
const std::vector<Sizes> kSizes{{1, 2, 5, 7, 6},      {2, 3, 48, 48, 48},  {1, 2, 65, 513, 34}, {2, 2, 129, 257, 128},
                                {1, 1, 300, 777, 72}, {1, 2, 64, 512, 16}, {3, 1, 17, 1, 8},    {1, 1, 1, 1030, 130}};

class Attention : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    use(Library::onednn);
    if (!takes_attention(heads(1, 1, 1, 2), heads(1, 1, 1, 2), heads(1, 1, 1, 2), {}))
      GTEST_SKIP() << "oneDNN has no such products for this processor";
  }
  void TearDown() override {
    use_libtorchs();
    at::set_num_threads(1);
  }

  /// As models make them: heads are cut from the last dimension.
  static Tensor heads(int64_t samples, int64_t count, int64_t tokens, int64_t width) {
    return at::randn({samples, tokens, count, width}, generator_).to(GetParam()).transpose(1, 2);
  }
  /// q, k, v and the gradient of what comes of them.
  static Tensors inputs(const Sizes& s) {
    return {heads(s[0], s[1], s[2], s[4]), heads(s[0], s[1], s[3], s[4]), heads(s[0], s[1], s[3], s[4]),
            heads(s[0], s[1], s[2], s[4])};
  }
  /// The output and the gradients of q, k and v, computed in `dtype`.
  static Tensors results(const Tensors& given, at::ScalarType dtype = GetParam()) {
    Tensors in;
    for (int i = 0; i < 3; ++i) in.push_back(given[i].detach().to(dtype).requires_grad_(true));
    const Tensor y = at::scaled_dot_product_attention(in[0], in[1], in[2]);
    Tensors all = torch::autograd::grad({y}, in, {given[3].to(dtype)});
    all.insert(all.begin(), y.detach());
    return all;
  }
  static Tensors by_libtorch(const Tensors& given) {
    use_libtorchs();
    Tensors all = results(given);
    use(Library::onednn);
    return all;
  }
  static double error(const Tensor& given, const Tensor& exact) {
    return ((given.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
  }
  static bool same(const Tensors& a, const Tensors& b) {
    for (std::size_t i = 0; i < a.size(); ++i)
      if (!at::equal(a[i], b[i])) return false;
    return a.size() == b.size();
  }

  static inline at::Generator generator_ = at::detail::createCPUGenerator(7);
};

INSTANTIATE_TEST_SUITE_P(Of, Attention, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return info.param == at::kFloat ? "fp32" : "bf16"; });

TEST_P(Attention, IsAsNearTheExactOneAsLibTorchs) {
  int others = 0;
  for (const Sizes& sizes : kSizes)
    for (const double factor : {1.0, 6.0}) {  // weights that are alike, and weights that one key has
      Tensors given = inputs(sizes);
      given[0] = (given[0] * factor).to(GetParam());
      const Tensors exact = results(given, at::kDouble), ours = results(given), theirs = by_libtorch(given);
      others += same(ours, theirs) ? 0 : 1;
      for (std::size_t i = 0; i < exact.size(); ++i) {
        if (exact[i].norm().item<double>() < 1e-6) continue;  // one key: nothing depends on q and k
        const double floor = GetParam() == at::kFloat ? 3e-6 : 6e-3;
        EXPECT_LT(error(ours[i], exact[i]), std::max(floor, 1.2 * error(theirs[i], exact[i])))
            << sizes[0] << ' ' << sizes[1] << ' ' << sizes[2] << ' ' << sizes[3] << ' ' << sizes[4] << ", " << i;
        EXPECT_EQ(ours[i].strides(), theirs[i].strides());
      }
    }
  EXPECT_GT(others, 10) << "it is another kernel";
}

TEST_P(Attention, GivesTheLogarithmOfTheSums) {
  const Tensors given = inputs({2, 3, 70, 600, 32});
  const auto [y, sums] =
      at::_scaled_dot_product_flash_attention_for_cpu(given[0], given[1], given[2], 0, false, {}, 0.3);
  const Tensor scores = 0.3 * given[0].to(at::kDouble).matmul(given[1].to(at::kDouble).transpose(2, 3));
  EXPECT_LT(error(sums, scores.logsumexp({-1})), 1e-6);
  EXPECT_EQ(sums.scalar_type(), at::kFloat);
  EXPECT_LT(error(y, scores.softmax(-1).matmul(given[2].to(at::kDouble))), GetParam() == at::kFloat ? 1e-6 : 4e-3);
}

TEST_P(Attention, TheSameBitsEveryTimeAndWithAnyNumberOfThreads) {
  const Tensors given = inputs({2, 3, 130, 130, 48});
  const Tensors first = results(given);
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(same(results(given), first)) << threads;
  }
  EXPECT_TRUE(at::equal(at::scaled_dot_product_attention(given[0], given[1], given[2]), first[0]))
      << "without a gradient";
}

/// A head of one sample is computed as it is alone; rows may have gaps and gradients no steps at all.
TEST_P(Attention, ReadsAnyStepsBetweenRows) {
  Tensors given = inputs({2, 2, 40, 90, 32});
  const Tensors whole = results(given);
  for (Tensor& t : given) t = t.narrow(0, 1, 1).narrow(1, 1, 1);
  const Tensors part = results(given);
  for (std::size_t i = 0; i < part.size(); ++i)
    EXPECT_TRUE(at::equal(part[i], whole[i].narrow(0, 1, 1).narrow(1, 1, 1)));
  const Tensor one = at::randn({1, 1, 1, 1}, generator_).to(GetParam());
  Tensors expanded = given, dense = given;
  expanded[3] = one.expand({1, 1, 40, 32});
  dense[3] = expanded[3].contiguous();
  EXPECT_TRUE(same(results(expanded), results(dense)));
  for (const int input : {1, 2}) {  // rows that overlap
    expanded = dense = given;
    expanded[input] = given[input].narrow(2, 3, 1).expand_as(given[input]);
    dense[input] = expanded[input].contiguous();
    const Tensors found = results(expanded), wanted = results(dense);
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(at::allclose(found[i].to(at::kFloat), wanted[i].to(at::kFloat), 2e-2, 2e-2)) << input << ' ' << i;
  }
}

TEST_P(Attention, NoNumbersReachWhateverReadsThem) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  for (const float poison : {kNan, kInfinity})
    for (int input = 0; input < 4; ++input) {
      Tensors given = inputs({1, 1, 20, 30, 16});
      given[input] = given[input].clone();
      given[input][0][0][4][0] = poison;
      const Tensors all = results(given);
      const auto lost = [&](int i) { return all[i].to(at::kDouble).isfinite().logical_not().any().item<bool>(); };
      EXPECT_EQ(lost(0), input < 3) << input;  // the gradient is not read forward
      const bool other_lost = all[0][0][0][5].to(at::kDouble).isfinite().logical_not().any().item<bool>();
      EXPECT_FALSE(input == 0 && other_lost) << "a query is read by itself alone";
      EXPECT_TRUE(lost(1)) << input;
      EXPECT_TRUE(lost(3) || input == 2) << input;  // v's gradient does not depend on v
    }
}

/// Of scores [queries, keys] that `mask` is added to.
Tensor exact_of(const Tensors& given, const Tensor& mask) {
  const Tensor q = given[0].to(at::kDouble), k = given[1].to(at::kDouble), v = given[2].to(at::kDouble);
  const Tensor scores = q.matmul(k.transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3))) + mask.to(at::kDouble);
  return scores.softmax(-1).nan_to_num(0).matmul(v);
}

TEST_P(Attention, SeesWhatTheMaskAndTheOrderLetItSee) {
  constexpr double kLowest = -std::numeric_limits<double>::infinity();
  const double bound = GetParam() == at::kFloat ? 1e-6 : 6e-3;
  for (const Sizes& sizes : {Sizes{2, 2, 33, 33, 16}, Sizes{1, 2, 130, 700, 32}, Sizes{2, 1, 90, 20, 8}}) {
    const Tensors given = inputs(sizes);
    const auto of = [&](const std::optional<Tensor>& mask, bool causal) {
      return at::scaled_dot_product_attention(given[0], given[1], given[2], mask, 0, causal);
    };
    const Tensor order = at::zeros({sizes[2], sizes[3]}, at::kDouble)
                             .masked_fill(at::ones({sizes[2], sizes[3]}, at::kBool).tril().logical_not(), kLowest);
    EXPECT_LT(error(of({}, true), exact_of(given, order)), bound);
    EXPECT_LT(error(of(order == 0, false), exact_of(given, order)), bound) << "numbers that are true or false";
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{sizes[2], sizes[3]},
                                              {sizes[0], 1, sizes[2], sizes[3]},
                                              {1, sizes[1], sizes[2], sizes[3]}}) {
      Tensor mask = at::randn(shape, generator_).to(GetParam());
      mask.select(-1, 1).fill_(kLowest);
      mask.select(-2, 4).fill_(kLowest);  // a query that sees nothing
      EXPECT_TRUE(takes_attention(given[0], given[1], given[2], {0, false, mask, {}}));
      EXPECT_FALSE(takes_attention_grad(given[0], given[1], given[2], {0, false, mask, {}}));
      const Tensor y = of(mask, false);
      EXPECT_LT(error(y, exact_of(given, mask)), bound) << mask.sizes();
      EXPECT_EQ(y.select(2, 4).abs().max().item<double>(), 0);
    }
  }
}

TEST_P(Attention, WhatItDoesNotTakeIsAsBefore) {
  const Tensors given = inputs({1, 2, 33, 33, 16});
  const Tensor mask = at::randn({33, 33}, generator_).to(GetParam());
  for (const Tensor& other : {mask.to(at::kDouble), mask.t(), mask.narrow(1, 0, 20), mask.clone().requires_grad_(true)})
    EXPECT_FALSE(takes_attention(given[0], given[1], given[2], {0, false, other, {}}));
  EXPECT_FALSE(takes_attention(given[0], given[1], given[2], {0.1, false, {}, {}}));
  EXPECT_FALSE(takes_attention_grad(given[0], given[1], given[2], {0, true, {}, {}}));
  const auto causal = [&] {
    Tensors in;
    for (int i = 0; i < 3; ++i) in.push_back(given[i].detach().requires_grad_(true));
    const Tensor y = at::scaled_dot_product_attention(in[0], in[1], in[2], {}, 0, true);
    return torch::autograd::grad({y}, in, {given[3]});
  };
  const Tensors ours = causal();
  use_libtorchs();
  const Tensors theirs = causal();
  for (std::size_t i = 0; i < ours.size(); ++i)
    EXPECT_LT(error(ours[i], theirs[i].to(at::kDouble)), GetParam() == at::kFloat ? 1e-5 : 3e-2);
  use(Library::onednn);
  const auto takes = [](const Tensor& q, const Tensor& k, const Tensor& v) { return takes_attention(q, k, v, {}); };
  EXPECT_TRUE(takes(given[0], given[1], given[2]));
  EXPECT_TRUE(takes(given[0].to(at::kMeta), given[1].to(at::kMeta), given[2].to(at::kMeta)));
  const Tensor fine = given[0].to(at::kDouble), half = given[0].to(at::kHalf), flat = given[0][0],
               none = given[0].narrow(2, 0, 0), sparse = given[0].transpose(2, 3);
  for (const Tensor& t : {fine, half, flat, none, sparse}) EXPECT_FALSE(takes(t, t, t));
  EXPECT_FALSE(takes(given[0], given[1].narrow(1, 0, 1), given[2].narrow(1, 0, 1)));
  EXPECT_FALSE(takes(given[0], given[1], given[2].narrow(2, 0, 5)));
  if (GetParam() == at::kBFloat16) {
    const Tensor odd = given[0].narrow(3, 0, 15);
    EXPECT_EQ(takes(odd, odd, odd), !has_bf16_products()) << "the processor's products are of pairs";
  }
  use(Library::mkl);
  EXPECT_TRUE(takes(given[0], given[1], given[2]));
  use_libtorchs();
  EXPECT_FALSE(takes(given[0], given[1], given[2]));
}

}  // namespace
}  // namespace trainer::matmul
