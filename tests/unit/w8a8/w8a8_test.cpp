/// @file Products of 8-bit rows with 8-bit weights: against sums in double of the very numbers that are multiplied, and
/// against the products that they stand for.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/mm.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <planner/shape_kernels.hpp>
#include <string_view>
#include <support/parity.hpp>
#include <trainer/sdk/recompute.hpp>
#include <utility>
#include <vector>
#include <w8a8/w8a8_weight.hpp>

#include "../fp8_weight_only/numbers.hpp"

namespace trainer::w8a8 {
namespace {

using eight_bits::quantize_rows;
using eight_bits::Rows;

using fp8::testing::CountedBytes;
using fp8::testing::random_matrix;

constexpr int64_t kRows = 40, kIn = 192, kOut = 320;

class W8A8 : public ::testing::TestWithParam<Code> {
 protected:
  [[nodiscard]] eight_bits::Packed packed(const at::Tensor& weight) const {
    return eight_bits::quantize(weight, eight_bits::Granularity::channel, "w", GetParam());
  }
  /// What a manifest declares.
  [[nodiscard]] double rounding() const { return GetParam() == Code::int8 ? 0.03 : 0.05; }
};
INSTANTIATE_TEST_SUITE_P(Codes, W8A8, ::testing::Values(Code::e4m3, Code::int8),
                         [](const auto& info) { return info.param == Code::int8 ? "int8" : "fp8"; });

at::Tensor numbers_of(const Rows& rows) { return rows.values.to(at::kFloat).to(at::kDouble) * rows.scale; }

TEST_P(W8A8, RowsAreNearAndDependOnNoOther) {
  at::Tensor x = random_matrix(kRows, kIn);
  x[3].mul_(1e4);
  x[4].mul_(1e-6);
  x[5].zero_();
  const Rows rows = quantize_rows(x, GetParam());
  const at::Tensor apart = (numbers_of(rows) - x).abs();
  // Half a step: of a row's largest number, or of the number itself (3 bits) down to the smallest of e4m3.
  const at::Tensor allowed =
      GetParam() == Code::int8 ? rows.scale.expand({kRows, kIn}) * 0.5 : x.abs() / 16 + rows.scale * std::pow(2.0, -10);
  EXPECT_TRUE((apart <= allowed * 1.0001).all().item<bool>());
  EXPECT_EQ(rows.scale[5].item<float>(), 1);
  for (const int64_t row : {0, 3, 4, 5}) {
    const Rows alone = quantize_rows(x.narrow(0, row, 1), GetParam());
    EXPECT_TRUE(test::same_bits(alone.values, rows.values.narrow(0, row, 1)));
    EXPECT_TRUE(test::same_bits(alone.scale, rows.scale.narrow(0, row, 1)));
  }
}

TEST_P(W8A8, SumsAreExactForAnyNumberOfRowsAndEitherLayout) {
  const at::Tensor weight = packed(random_matrix(kOut, kIn, 2)).values;
  const at::Tensor wide = weight.to(at::kFloat).to(at::kDouble);
  for (const int64_t count : {0, 1, 5, 16, 17, 31, 32, 33, 40}) {
    const at::Tensor x = quantize_rows(random_matrix(count, kIn), GetParam()).values,
                     g = quantize_rows(random_matrix(count, kOut), GetParam()).values;
    const auto check = [&](const at::Tensor& got, const at::Tensor& expected) {
      ASSERT_EQ(got.scalar_type(), at::kFloat);
      ASSERT_EQ(got.sizes(), expected.sizes());
      if (count == 0) return;
      EXPECT_LE(test::l2_error(got, expected), 1e-6) << count;
    };
    check(product(x, weight.t()), at::mm(x.to(at::kFloat).to(at::kDouble), wide.t()));
    check(product(g, weight), at::mm(g.to(at::kFloat).to(at::kDouble), wide));
  }
}

/// Channels of very different size: their scales stand outside the sum in forward, within it in backward.
TEST_P(W8A8, ScalesOfChannelsAreFoldedIntoTheGradientFirst) {
  const at::Tensor sizes = at::linspace(-3, 3, kOut).exp2().mul_(4).unsqueeze(1);
  const W8A8Weight weight(packed(random_matrix(kOut, kIn, 2) * sizes));
  ASSERT_TRUE(weight.in_8_bits());
  const at::Tensor dense = weight.dense(at::kFloat), scale = packed(dense).scale;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = random_matrix(kRows, kIn).to(dtype), g = random_matrix(kRows, kOut, 3).to(dtype);
    const at::Tensor y = weight.matmul(x), dx = weight.grad_input(g);
    EXPECT_EQ(y.scalar_type(), dtype);
    EXPECT_EQ(dx.scalar_type(), dtype);
    EXPECT_LE(test::l2_error(y, at::mm(x.to(at::kFloat), dense.t())), rounding());
    EXPECT_LE(test::l2_error(dx, at::mm(g.to(at::kFloat), dense)), rounding());
    // The definition, in double.
    const double limit = dtype == at::kFloat ? 1e-6 : 4e-3;
    const at::Tensor wide = dense.to(at::kDouble);
    EXPECT_LE(test::l2_error(y, at::mm(numbers_of(quantize_rows(x, GetParam())), wide.t())), limit);
    const at::Tensor folded = numbers_of(quantize_rows(g.to(at::kFloat) * scale.t(), GetParam())) / scale.t();
    EXPECT_LE(test::l2_error(dx, at::mm(folded, wide)), limit);
  }
}

TEST_P(W8A8, ANumberThatIsNoneStaysInItsRow) {
  const W8A8Weight weight(packed(random_matrix(kOut, kIn, 2)));
  at::Tensor x = random_matrix(kRows, kIn);
  const at::Tensor clean = weight.matmul(x);
  x[7][9] = std::nan("");
  x[8][3] = INFINITY;
  const at::Tensor y = weight.matmul(x), finite = at::isfinite(y).all(1);
  for (int64_t row = 0; row < kRows; ++row) {
    EXPECT_EQ(finite[row].item<bool>(), row != 7 && row != 8) << row;
    EXPECT_EQ(test::same_bits(y[row], clean[row]), row != 7 && row != 8) << row;
  }
}

/// What devices with kernels do, here by the CPU's loops.
TEST_P(W8A8, FewPassesGiveTheSameBits) {
  const eight_bits::Packed weight = packed(random_matrix(kOut, kIn, 2));
  const at::Tensor channels = weight.scale.view({-1});
  const W8A8Weight plain(packed(random_matrix(kOut, kIn, 2)));
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t rows : {0, 1, 31, 32, 40}) {
      const at::Tensor x = random_matrix(std::max<int64_t>(rows, 1), kIn).narrow(0, 0, rows).to(dtype),
                       g = random_matrix(std::max<int64_t>(rows, 1), kOut, 3).narrow(0, 0, rows).to(dtype);
      Shared shared;
      const at::Tensor y = scaled_product(x, {}, weight.values.t(), channels, shared),
                       dx = scaled_product(g, channels, weight.values, {}, shared);
      EXPECT_TRUE(test::same_bits(y, plain.matmul(x))) << dtype << " " << rows;
      EXPECT_TRUE(test::same_bits(dx, plain.grad_input(g))) << dtype << " " << rows;
    }
}

int paddings = 0;
std::unique_ptr<at::ObserverContext> count_padding(const at::RecordFunction& call) {
  if (std::string_view(call.name()) == "aten::constant_pad_nd") ++paddings;
  return nullptr;
}

/// Padding by nothing would be a copy, on CUDA two kernels for each product.
TEST_P(W8A8, OnlyFewRowsAreFilledUp) {
  const eight_bits::Packed weight = packed(random_matrix(kOut, kIn, 2));
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(count_padding));
  for (const auto& [rows, expected] : {std::pair{31, 2}, {32, 0}, {40, 0}}) {
    paddings = 0;
    Shared shared;
    scaled_product(random_matrix(rows, kIn), {}, weight.values.t(), {}, shared);
    EXPECT_EQ(paddings, expected) << rows;
  }
  at::removeCallback(handle);
}

TEST(W8A8Shared, OnesAreFilledOnce) {
  Shared shared;
  const at::Tensor once = shared.ones(48, at::kCPU), less = shared.ones(16, at::kCPU);
  EXPECT_EQ(less.sizes(), at::IntArrayRef({16}));
  EXPECT_EQ(less.const_data_ptr(), once.const_data_ptr());
  EXPECT_TRUE(less.is_contiguous());
  const at::Tensor more = shared.ones(64, at::kCPU);
  EXPECT_EQ(more.sum().item<float>(), 64);
  EXPECT_EQ(once.sum().item<float>(), 48);
  EXPECT_EQ(shared.ones(64, at::kMeta).size(0), 64);
  EXPECT_FALSE(shared.ones(64, at::kMeta).is_alias_of(shared.ones(64, at::kMeta))) << "a plan keeps none";
}

TEST_P(W8A8, WhatDoesNotFitIsExpanded) {
  for (const auto& [out, in] : {std::pair<int64_t, int64_t>{20, 64}, {64, 20}, {7, 5}}) {
    const W8A8Weight weight(packed(random_matrix(out, in, 2)));
    EXPECT_FALSE(weight.in_8_bits());
    const at::Tensor x = random_matrix(3, in).to(at::kBFloat16), g = random_matrix(3, out).to(at::kBFloat16);
    EXPECT_TRUE(test::same_bits(weight.matmul(x), at::mm(x, weight.dense(at::kBFloat16).t())));
    EXPECT_TRUE(test::same_bits(weight.grad_input(g), at::mm(g, weight.dense(at::kBFloat16))));
  }
  eight_bits::Packed blocks = eight_bits::quantize(random_matrix(kOut, kIn), eight_bits::Granularity::block, "w");
  EXPECT_FALSE(W8A8Weight(std::move(blocks)).in_8_bits()) << "a scale within the sum";
}

TEST_P(W8A8, AFrozenLinearTakesItsGradient) {
  const auto weight = std::make_shared<W8A8Weight>(packed(random_matrix(kOut, kIn, 2)));
  const at::Tensor x = random_matrix(kRows, kIn).requires_grad_(true), g = random_matrix(kRows, kOut, 3);
  const at::Tensor y = frozen_linear(x, weight);
  y.backward(g);
  EXPECT_TRUE(test::same_bits(y.detach(), weight->matmul(x.detach())));
  EXPECT_TRUE(test::same_bits(x.grad(), weight->grad_input(g)));
}

TEST_P(W8A8, BytesAreExactAndNoWeightIsExpanded) {
  constexpr int64_t kLarge = 2048;
  const W8A8Weight weight(packed(random_matrix(kLarge, kLarge, 2)));
  EXPECT_EQ(weight.bytes(), kLarge * kLarge + 4 * kLarge);
  const at::Tensor x = random_matrix(32, kLarge).to(at::kBFloat16);
  CountedBytes counted;
  const at::Tensor y = weight.matmul(x);
  EXPECT_LT(counted.peak(), kLarge * kLarge / 2);
  counted.restart_peak();
  const at::Tensor dx = weight.grad_input(x);
  // _scaled_mm wants both operands along the sum: one transposed copy in 8 bits.
  EXPECT_LT(counted.peak(), (GetParam() == Code::int8 ? 0 : kLarge * kLarge) + kLarge * kLarge / 2);
}

TEST_P(W8A8, HasShapesOnTheMetaDevice) {
  planner::install_shape_kernels();
  W8A8Weight weight(packed(random_matrix(kOut, kIn, 2)));
  weight.to(at::kMeta);
  const at::Tensor y = weight.matmul(at::empty({5, kIn}, at::TensorOptions(at::kBFloat16).device(at::kMeta)));
  EXPECT_TRUE(y.is_meta());
  EXPECT_EQ(y.sizes(), at::IntArrayRef({5, kOut}));
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_EQ(weight.grad_input(y).sizes(), at::IntArrayRef({5, kIn}));
}

/// What a plan takes a step's time from, and what the engine may leave out.
TEST_P(W8A8, ItsWorkIsCountedAsThatOfAPlainProduct) {
  planner::install_shape_kernels();
  for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kMeta)}) {
    W8A8Weight weight(packed(random_matrix(kOut, kIn, 2)));
    weight.to(device);
    const at::Tensor x = random_matrix(kRows, kIn).to(device), g = random_matrix(kRows, kOut, 3).to(device);
    const FlopCounter forward;
    static_cast<void>(weight.matmul(x));
    EXPECT_EQ(forward.flops(), 2.0 * kRows * kIn * kOut) << device;
    const FlopCounter backward;
    static_cast<void>(weight.grad_input(g));
    EXPECT_EQ(backward.flops(), 2.0 * kRows * kIn * kOut) << device;
  }
}

}  // namespace
}  // namespace trainer::w8a8
