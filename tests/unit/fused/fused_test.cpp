/// @file The fused operations on the CPU against autograd of the plain operators, in every dtype and in awkward shapes.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <torch/csrc/autograd/autograd.h>
#include <planner/byte_counter.hpp>

#include <cmath>

#include "operations.hpp"

namespace trainer::test {
namespace {

class Fused : public ::testing::TestWithParam<Operation> {};

void expect_close(const Operation& operation, const std::vector<at::Tensor>& got,
                  const std::vector<at::Tensor>& expected, double limit) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_LE(error(got[i], expected[i]), limit) << operation.name << (i == 0 ? ": result" : ": gradient ") << i;
}

TEST_P(Fused, GradientsInDoubleAreThoseOfThePlainOperators) {
  const auto inputs = inputs_of(GetParam(), at::kDouble);
  // The angles are fp32 numbers in both.
  expect_close(GetParam(), forward_and_backward(GetParam(), inputs, true),
               forward_and_backward(GetParam(), inputs, false), 1e-12);
}

TEST_P(Fused, IsCloserToDoubleThanRounding) {
  for (const auto& [dtype, limit] : {std::pair{at::kFloat, 2e-6}, std::pair{at::kBFloat16, 1.2e-2}}) {
    const auto inputs = inputs_of(GetParam(), dtype);
    std::vector<at::Tensor> wide;
    for (const at::Tensor& input : inputs) wide.push_back(input.detach().to(at::kDouble).requires_grad_(true));
    const auto got = forward_and_backward(GetParam(), inputs, true);
    for (const at::Tensor& tensor : got) EXPECT_EQ(tensor.scalar_type(), dtype);
    // The direction is rounded to the dtype as well, so the plain operators in that dtype are the second reference.
    if (dtype == at::kBFloat16)
      expect_close(GetParam(), got, forward_and_backward(GetParam(), inputs, false), 2 * limit);
    else
      expect_close(GetParam(), got, forward_and_backward(GetParam(), wide, false), limit);
  }
}

TEST_P(Fused, SameBitsEveryTimeWithAndWithoutGradients) {
  const int threads = at::get_num_threads();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto inputs = inputs_of(GetParam(), dtype);
    const auto once = forward_and_backward(GetParam(), inputs, true);
    at::set_num_threads(threads == 1 ? 2 : 1);
    const auto again = forward_and_backward(GetParam(), inputs, true);
    at::set_num_threads(threads);
    for (std::size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(at::equal(once[i], again[i])) << i;
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(GetParam().run(inputs, true), once[0]));
  }
}

TEST_P(Fused, TakesWhatDoesNotLieDense) {
  const auto inputs = inputs_of(GetParam(), at::kFloat);
  std::vector<at::Tensor> strided, sliced;
  for (const at::Tensor& input : inputs) {
    // The same numbers with steps of their own: dimensions in reverse order in memory, and a part of longer rows.
    const at::Tensor plain = input.detach();
    std::vector<int64_t> order, longer = plain.sizes().vec();
    for (int64_t i = plain.dim(); i > 0; --i) order.push_back(i - 1);
    strided.push_back(plain.permute(order).contiguous().permute(order).requires_grad_(true));
    longer.back() += 3;
    at::Tensor row = at::empty(longer, plain.options());
    row.fill_(std::nan(""));
    row.narrow(-1, 1, plain.size(-1)).copy_(plain);
    sliced.push_back(row.narrow(-1, 1, plain.size(-1)).detach().requires_grad_(true));
  }
  const auto expected = forward_and_backward(GetParam(), inputs, true);
  for (const auto& others : {strided, sliced}) {
    const auto got = forward_and_backward(GetParam(), others, true);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << i;
  }
}

TEST_P(Fused, TakesAGradientThatIsOneNumberEverywhere) {
  const auto inputs = inputs_of(GetParam(), at::kDouble);
  for (const at::Tensor& input : inputs) {
    const auto gradient = [&](bool fused) {
      return torch::autograd::grad({GetParam().run(inputs, fused).sum()}, {input})[0];
    };
    EXPECT_LE((gradient(true) - gradient(false)).abs().sum().item<double>(), 1e-10 * (1.0 + input.numel()));
  }
}

TEST_P(Fused, GradientsOfSomeInputsAreThoseOfAll) {
  const auto inputs = inputs_of(GetParam(), at::kFloat);
  const auto all = forward_and_backward(GetParam(), inputs, true);
  for (std::size_t wanted = 0; wanted < inputs.size(); ++wanted) {
    std::vector<at::Tensor> frozen;
    for (std::size_t i = 0; i < inputs.size(); ++i) frozen.push_back(i == wanted ? inputs[i] : inputs[i].detach());
    Operation one = GetParam();
    one.run = [&](const std::vector<at::Tensor>& trained, bool fused) {
      std::vector<at::Tensor> every = frozen;
      every[wanted] = trained[0];
      return GetParam().run(every, fused);
    };
    EXPECT_TRUE(at::equal(forward_and_backward(one, {inputs[wanted]}, true)[1], all[wanted + 1])) << wanted;
  }
}

TEST_P(Fused, HalfTakesThePlainOperators) {
  const auto inputs = inputs_of(GetParam(), at::kHalf);
  EXPECT_TRUE(at::equal(GetParam().run(inputs, true), GetParam().run(inputs, false)));
}

TEST_P(Fused, NanStaysNan) {
  auto inputs = inputs_of(GetParam(), at::kBFloat16);
  if (inputs[0].numel() == 0) return;
  inputs[0] = inputs[0].detach().clone();
  inputs[0].view(-1)[0] = std::nan("");
  EXPECT_TRUE(std::isnan(GetParam().run(inputs, true).sum().item<double>()));
}

TEST(SwiGlu, LargeGatesDoNotOverflow) {
  const at::Tensor x = at::empty({1, 8}, at::kFloat);
  const std::vector<float> gates{-1e4F, -100, -88, 0, 88, 100, 1e4F, 3e38F};
  for (std::size_t i = 0; i < gates.size(); ++i) {
    x.fill_(gates[i]);
    x.narrow(1, 4, 4).fill_(1);
    const at::Tensor got = swiglu(x), expected = swiglu(x, {}, false);
    EXPECT_LE((got - expected).abs().max().item<float>(), 1e-6F * (1 + std::abs(gates[i]))) << gates[i];
  }
}

TEST(SwiGlu, RefusesAnOddNumberOfColumns) { EXPECT_THROW(swiglu(at::empty({2, 3})), c10::Error); }

TEST(GatedResidual, KeepsWhatItAddsOnlyForATrainedGate) {
  for (const bool trained : {false, true}) {
    const at::Tensor x = at::empty({2, 3, 4}).fill_(1).requires_grad_(), leaf = at::empty({2, 3, 4}).fill_(2);
    const at::Tensor gate = at::empty({1, 1, 4}).fill_(3).requires_grad_(trained);
    at::Tensor y = leaf.requires_grad_() * 2;
    const c10::weak_intrusive_ptr<c10::StorageImpl> added(y.storage().getWeakStorageImpl());
    const at::Tensor sum = gated_residual(x, gate, y);
    y.reset();
    EXPECT_EQ(added.expired(), !trained);
    const std::vector<at::Tensor> grads = torch::autograd::grad({sum.sum()}, {x, leaf});
    EXPECT_EQ(grads[0].sum().item<double>(), 24);
    EXPECT_EQ(grads[1].sum().item<double>(), 24 * 6);
  }
}

/// Between forward and backward: what is made beside the result. The numbers hold at every level of the processor,
/// which the tests run at, so a plan and what elision finds dead do, too.
TEST(KeptBytes, AreTheInputsAloneWhateverTheLevel) {
  planner::install_byte_counter();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto made = [&](at::IntArrayRef shape) { return at::empty(shape, dtype).fill_(1).requires_grad_(); };
    const auto kept = [](const std::function<at::Tensor()>& run) {
      const planner::PeakMark mark(at::kCPU);
      const at::Tensor y = run();
      return mark.held() - static_cast<int64_t>(y.nbytes());
    };
    const at::Tensor x = made({2, 5, 32}), other = made({2, 5, 32}), row = made({2, 1, 32}), before = made({2, 5, 8});
    const at::Tensor heads = made({2, 5, 2, 16}), weight = made({16}), table = at::empty({1, 5, 8, 2}).fill_(1);
    EXPECT_EQ(kept([&] { return modulated_norm(x, row, row, 1e-6); }), 0);
    EXPECT_EQ(kept([&] { return norm_rope({heads}, {weight}, table, 1e-6); }), 0);
    EXPECT_EQ(kept([&] { return swiglu(x, before); }), 0);
    EXPECT_EQ(kept([&] { return gated_residual(x, row, other); }), 0);
    const at::Tensor rows = made({9, 32}), sum = made({9, 48}), a = at::empty({4, 32}).fill_(1).requires_grad_(),
                     b = at::empty({48, 4}).fill_(1).requires_grad_();
    EXPECT_EQ(kept([&] { return low_rank_sum(rows, sum, a, b, 0.5); }), 9 * 4 * 4) << "x A^T in fp32";
  }
}

TEST(NormRope, RefusesATableOfOtherTokens) {
  const at::Tensor x = at::empty({1, 3, 2, 4}), weight = at::empty({4});
  EXPECT_THROW(norm_rope({x}, {weight}, at::empty({1, 4, 2, 2}), 1e-6), c10::Error);
  EXPECT_THROW(norm_rope({x, x}, {weight}, at::empty({1, 6, 2, 2}), 1e-6), c10::Error);
}

INSTANTIATE_TEST_SUITE_P(Operations, Fused, ::testing::ValuesIn(operations()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace trainer::test
