/// @file The packed weight in a frozen linear: same bits as a dense weight of its numbers, nothing saved but the
/// handle.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <gtest/gtest.h>
#include <fp8_weight_only/fp8_weight.hpp>
#include <trainer/sdk/eight_bit_weights.hpp>
#include <trainer/sdk/ops/products.hpp>
#include <trainer/sdk/recompute.hpp>

#include <support/parity.hpp>

#include "numbers.hpp"

namespace trainer::fp8 {
namespace {

using namespace eight_bits;

using testing::CountedBytes;
using testing::random_matrix;

constexpr int64_t kRows = 48, kWeightIn = 192, kWeightOut = 320;

std::shared_ptr<Fp8Weight> packed_weight(Granularity granularity) {
  return std::make_shared<Fp8Weight>(quantize(random_matrix(kWeightOut, kWeightIn), granularity, "w"));
}

/// Output and input gradient of a frozen linear.
std::pair<at::Tensor, at::Tensor> run(const std::shared_ptr<FrozenWeight>& weight, at::ScalarType dtype) {
  const at::Tensor x = random_matrix(kRows, kWeightIn, 2).to(dtype).requires_grad_(true);
  const at::Tensor y = frozen_linear(x, weight);
  y.backward(random_matrix(kRows, kWeightOut, 3).to(dtype));
  return {y.detach(), x.grad()};
}

TEST(Fp8Weight, EqualsADenseWeightBitForBit) {
  for (const Granularity granularity : {Granularity::channel, Granularity::tensor, Granularity::block})
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const auto packed = packed_weight(granularity);
      const auto dense = std::make_shared<DenseWeight>(packed->dense(dtype));
      const auto [y, grad] = run(packed, dtype);
      const auto [dense_y, dense_grad] = run(dense, dtype);
      EXPECT_EQ(y.scalar_type(), dtype);
      EXPECT_TRUE(test::same_bits(y, dense_y));
      EXPECT_TRUE(test::same_bits(grad, dense_grad));
      const auto [again_y, again_grad] = run(packed_weight(granularity), dtype);
      EXPECT_TRUE(test::same_bits(y, again_y) && test::same_bits(grad, again_grad)) << "packed anew";
    }
}

TEST(Fp8Weight, BytesAreExact) {
  EXPECT_EQ(packed_weight(Granularity::channel)->bytes(), kWeightOut * kWeightIn + 4 * kWeightOut);
  EXPECT_EQ(packed_weight(Granularity::tensor)->bytes(), kWeightOut * kWeightIn + 4);
  EXPECT_EQ(packed_weight(Granularity::block)->bytes(), kWeightOut * kWeightIn + 4 * kWeightOut * (kWeightIn / 64));
  CountedBytes counted;
  const auto weight =
      std::make_shared<Fp8Weight>(quantize(random_matrix(kWeightOut, kWeightIn), Granularity::block, "w"));
  EXPECT_EQ(counted.live(), weight->bytes());
}

TEST(Fp8Weight, MovesWithItsScale) {
  const auto weight = packed_weight(Granularity::channel);
  weight->to(at::kMeta);
  EXPECT_TRUE(weight->packed().values.is_meta() && weight->packed().scale.is_meta());
}

TEST(Fp8Weight, SavesNothingButTheHandle) {
  const auto weight = packed_weight(Granularity::channel);
  const at::Tensor leaf = random_matrix(kRows, kWeightIn, 2).requires_grad_(true);
  CountedBytes bytes;
  at::Tensor y;
  {
    const at::Tensor x = leaf * 2;  // a multiplication by a number saves nothing
    y = frozen_linear(x, weight);
  }
  EXPECT_EQ(bytes.live(), kRows * kWeightOut * 4) << "only y lives: neither x nor the expanded weight";
  EXPECT_GE(bytes.peak(), kRows * kWeightOut * 4 + kWeightOut * kWeightIn * 4)
      << "the expanded weight was counted while it lived";
  y.sum().backward();
  EXPECT_EQ(bytes.live(), kRows * kWeightOut * 4 + kRows * kWeightIn * 4) << "y and the gradient";
}

Packed odd(at::ScalarType code, int64_t scales, int64_t block) {
  const at::Tensor numbers = random_matrix(71, 301) * 20;
  return {code == at::kChar ? numbers.round().to(code) : numbers.to(code), random_matrix(scales, 301 / block + 1).abs(),
          block};
}

/// Expanded in the product's panels, on every processor, forward and backward.
TEST(Fp8Weight, PanelsHaveTheBitsOfTheExpandedWeight) {
  for (const at::ScalarType code : {at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kChar})
    for (const Packed& packed : {odd(code, 1, 301), odd(code, 71, 301), odd(code, 71, 64), odd(code, 71, 7)})
      for (const bool turned : {true, false}) {
        const at::Tensor x = random_matrix(45, turned ? 301 : 71, 2).to(at::kBFloat16);
        const at::Tensor dense = dequantize(packed, at::kBFloat16), weight = turned ? dense.t() : dense;
        at::Tensor expected = at::mm(x, weight);
        EXPECT_TRUE(test::same_bits(product(x, packed, turned), expected)) << code << turned;
        multiply(x, weight, std::nullopt, 1, expected);
        const at::Tensor y = multiply_packed(x, packed.values, packed.scale, packed.column_block, turned);
        EXPECT_TRUE(test::same_bits(y, expected)) << code << turned;
      }
}

/// So does a dry run, which counts the same operations.
TEST(Fp8Weight, PanelsExpandNoWholeWeight) {
  const Packed packed = quantize(random_matrix(1024, 512), Granularity::channel, "w");
  const Packed dry{at::empty_like(packed.values, at::kMeta), at::empty_like(packed.scale, at::kMeta), 512};
  const at::Tensor x = random_matrix(3, 512).to(at::kBFloat16);
  const FlopCounter flops;
  CountedBytes bytes;
  const at::Tensor y = product(x, packed, /*turned=*/true);
  EXPECT_EQ(flops.flops(), 2.0 * 3 * 512 * 1024);
  if (!has_bf16_products()) {
    EXPECT_EQ(bytes.peak(), 3 * 1024 * 2) << "the result";
  }
  const at::Tensor planned = product(x.to(at::kMeta), dry, /*turned=*/true);
  EXPECT_EQ(planned.sizes(), y.sizes());
  EXPECT_EQ(flops.flops(), 4.0 * 3 * 512 * 1024);
}

TEST(Fp8Weight, RefusesScalesThatDoNotFit) {
  const Packed packed = quantize(random_matrix(64, 128), Granularity::block, "w");
  const at::Tensor x = random_matrix(3, 128).to(at::kBFloat16);
  EXPECT_THROW(multiply_packed(x, packed.values, packed.scale, 32, true), c10::Error);
  EXPECT_THROW(multiply_packed(x, packed.values, packed.scale, 64, false), c10::Error);
  EXPECT_THROW(multiply_packed(x, x, packed.scale, 64, true), c10::Error);
}

TEST(Fp8Weight, NoHistory) {
  const at::Tensor x = random_matrix(kRows, kWeightIn, 2);
  EXPECT_FALSE(frozen_linear(x, packed_weight(Granularity::tensor)).requires_grad());
  EXPECT_FALSE(packed_weight(Granularity::tensor)->dense(at::kFloat).requires_grad());
}

/// Kept between a product and its backward: same bits, one expansion instead of two, and released.
TEST(Fp8Weight, KeepsItsExpansionWhenTold) {
  const auto weight = packed_weight(Granularity::channel);
  const auto [y, grad] = run(weight, at::kBFloat16);
  EXPECT_EQ(weight->kept_bytes(), 0);
  weight->keep();
  const auto [kept_y, kept_grad] = run(weight, at::kBFloat16);
  EXPECT_EQ(weight->kept_bytes(), kWeightOut * kWeightIn * 2);
  EXPECT_TRUE(test::same_bits(y, kept_y) && test::same_bits(grad, kept_grad));
  {
    CountedBytes bytes;
    const at::Tensor g = weight->grad_input(random_matrix(1, kWeightOut, 3).to(at::kBFloat16));
    EXPECT_LT(bytes.peak(), kWeightOut * kWeightIn * 2) << "nothing was expanded";
    // Another dtype than the kept one is expanded anew.
    EXPECT_EQ(weight->grad_input(random_matrix(1, kWeightOut, 3)).scalar_type(), at::kFloat);
  }
  weight->release();
  EXPECT_EQ(weight->kept_bytes(), 0);
  run(weight, at::kBFloat16);
  EXPECT_EQ(weight->kept_bytes(), 0) << "keeping ended with the release";
}

}  // namespace
}  // namespace trainer::fp8
