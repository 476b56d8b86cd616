/// @file The products of an adapter by parts (low_rank_parts.hpp), which run on CUDA, computed on the CPU: against
/// double, and that fp32 numbers keep more bits than bf16 has.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <sdk/src/fused/low_rank_parts.hpp>
#include <trainer/sdk/ops/fused.hpp>

#include <cmath>
#include <limits>

namespace trainer::fused::by_parts {
namespace {

using at::Tensor;

class ByParts : public ::testing::Test {
 protected:
  ByParts() { swiglu(at::randn({1, 2})); }  // installs the operators

  static Tensor normal(uint64_t seed, at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
    const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    return at::randn(shape, generator, at::kDouble).to(dtype);
  }
  static double error(const Tensor& value, const Tensor& expected) {
    if (expected.numel() == 0) return value.sizes() == expected.sizes() ? 0 : 1;
    return ((value.to(at::kDouble) - expected).abs().max() / (expected.abs().max() + 1e-300)).item<double>();
  }
};

Tensor split(const Tensor& matrix, at::IntArrayRef order, double factor, bool beside) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("trainer::bf16_parts", "")
      .typed<Tensor(const Tensor&, at::IntArrayRef, double, bool)>()
      .call(matrix, order, factor, beside);
}

TEST_F(ByParts, OfANumberAreItsBits) {
  const Tensor x = normal(1, {7, 19}) * at::tensor({1e-30, 1e30, 1e-3, 1., 7., 3e5, 1e-9}).to(at::kFloat).unsqueeze(1);
  const Tensor below = split(x, {0, 1, 2}, 1, false), beside = split(x, {0, 1, 2}, 1, true);
  EXPECT_EQ(below.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(below.view({3, 7, 19}), beside.view({7, 3, 19}).transpose(0, 1)));
  EXPECT_TRUE(at::equal(below.to(at::kDouble).view({3, 7, 19}).sum(0), x.to(at::kDouble)));
  EXPECT_TRUE(at::equal(split(x, {0, 1, 0}, 0.5, false).narrow(0, 14, 7), (x * 0.5).to(at::kBFloat16)));
}

TEST_F(ByParts, WhatIsNotFiniteStaysSo) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Tensor x = at::tensor({kInfinity, -kInfinity, std::nanf(""), 3e38F}).view({1, 4});
  const Tensor sums = split(x, {0, 1, 2}, 1, false).to(at::kFloat).sum(0);
  EXPECT_EQ(sums[0].item<float>(), kInfinity);
  EXPECT_EQ(sums[1].item<float>(), -kInfinity);
  EXPECT_TRUE(std::isnan(sums[2].item<float>()));
  EXPECT_EQ(sums[3].item<float>(), 3e38F);
}

TEST_F(ByParts, ProductsAreThoseOfDouble) {
  for (const auto& [rows, width, rank] : {std::array{9, 300, 16}, {70, 67, 3}, {1, 1, 1}, {0, 8, 2}, {5, 40, 64}})
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const Tensor x = normal(1, {rows, width}, dtype), low = normal(2, {rows, rank}), dense = normal(3, {rank, width});
      const Tensor wide_x = x.to(at::kDouble), wide_low = low.to(at::kDouble), wide = dense.to(at::kDouble);
      const Tensor sum = wide_x + 0.3 * wide_low.matmul(wide);
      const double rounding = dtype == at::kBFloat16 ? 4e-3 : 1e-6;
      for (const Tensor& weight : {dense, dense.t().contiguous().t(), normal(3, {rank, width})}) {
        EXPECT_LE(error(down(x, weight, 0.3), 0.3 * wide_x.matmul(wide.t())), 1e-6) << rows << dtype;
        EXPECT_LE(error(up(low, weight, x, 0.3, dtype), sum), rounding) << rows << dtype;
        EXPECT_LE(error(up(low, weight, {}, 0.3, dtype), 0.3 * wide_low.matmul(wide)), rounding) << rows << dtype;
        Tensor base = x.clone();
        EXPECT_TRUE(up_in_place(low, weight, 0.3, base).is_same(base));
        EXPECT_LE(error(base, sum), rounding) << rows << dtype;
        EXPECT_EQ(base.scalar_type(), dtype);
      }
      EXPECT_LE(error(outer(low, x, 0.3), 0.3 * wide_low.t().matmul(wide_x)), 1e-6) << rows << dtype;
      EXPECT_EQ(down(x, dense, 1).sizes(), low.sizes());
      EXPECT_EQ(outer(low, x, 1).sizes(), dense.sizes());
    }
}

/// An adapter's steps are smaller than bf16's; those that the forward would not see were trained for nothing.
TEST_F(ByParts, ASmallStepOfTheAdapterIsSeen) {
  const Tensor x = normal(1, {8, 64}, at::kBFloat16), weight = normal(2, {4, 64});
  const Tensor moved = weight * (1 + 1e-5);
  const Tensor step = down(x, moved, 1) - down(x, weight, 1);
  const Tensor expected = x.to(at::kDouble).matmul((moved.to(at::kDouble) - weight.to(at::kDouble)).t());
  EXPECT_LE(error(step, expected), 0.2);
}

}  // namespace
}  // namespace trainer::fused::by_parts
