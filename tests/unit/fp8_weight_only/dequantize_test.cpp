/// @file Expanding packed weights: every code, every dtype, and the two ways give the same bits.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <trainer/sdk/eight_bit_weights.hpp>

#include <support/parity.hpp>

#include "numbers.hpp"

namespace trainer::fp8 {
namespace {

using namespace eight_bits;

using testing::random_matrix;

TEST(Dequantize, EveryCode) {
  for (const at::ScalarType dtype : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    const at::Tensor codes = at::arange(256, at::kByte).view(dtype).view({1, 256});
    const at::Tensor expected = codes.to(at::kFloat);
    const at::Tensor found = dequantize({codes, at::ones({1, 1}), 256}, at::kFloat);
    EXPECT_TRUE(at::equal(at::isnan(found), at::isnan(expected)));
    EXPECT_TRUE(at::equal(at::nan_to_num(found), at::nan_to_num(expected)));
  }
}

/// Multiplied in fp32, rounded once: 15 * (1 + 2^-8) is 15.0586, in bf16 15.0625; a scale rounded first would give 15.
TEST(Dequantize, RoundsOnce) {
  const Packed packed{at::tensor({15.0F}).to(at::kFloat8_e4m3fn).view({1, 1}), at::tensor({1.00390625F}).view({1, 1}),
                      1};
  EXPECT_EQ(dequantize(packed, at::kBFloat16).item<float>(), 15.0625F);
  EXPECT_EQ(dequantize(packed, at::kFloat).item<float>(), 15.05859375F);
}

/// Shapes below and above the length from which a table is used, and column blocks that end early.
TEST(Dequantize, LoopAndOperatorsAgreeBitForBit) {
  for (const int64_t in : {64, 192, 576, 1024})
    for (const Granularity granularity : {Granularity::channel, Granularity::tensor, Granularity::block})
      for (const Code code : {Code::e4m3, Code::int8}) {
        const Packed packed = quantize(random_matrix(70, in), granularity, "w", code);
        for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
          const at::Tensor dense = dequantize(packed, dtype);
          EXPECT_EQ(dense.scalar_type(), dtype);
          EXPECT_TRUE(test::same_bits(dense, dequantize_by_operators(packed, dtype))) << in << ' ' << dtype;
        }
      }
  Packed ragged{random_matrix(6, 300).to(at::kFloat8_e4m3fn), random_matrix(6, 3, 2).abs(), 128};
  EXPECT_TRUE(test::same_bits(dequantize(ragged, at::kFloat), dequantize_by_operators(ragged, at::kFloat)));
  const at::Tensor last = ragged.values.narrow(1, 256, 44).to(at::kFloat) * ragged.scale.narrow(1, 2, 1);
  EXPECT_TRUE(test::same_bits(dequantize(ragged, at::kFloat).narrow(1, 256, 44).contiguous(), last));
}

TEST(Dequantize, SameBitsEveryTime) {
  const Packed packed = quantize(random_matrix(300, 640), Granularity::channel, "w");
  const at::Tensor first = dequantize(packed, at::kBFloat16);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(test::same_bits(dequantize(packed, at::kBFloat16), first));
}

TEST(Dequantize, AllocatesTheResultAlone) {
  const Packed packed = quantize(random_matrix(512, 1024), Granularity::block, "w");
  testing::CountedBytes bytes;
  const at::Tensor dense = dequantize(packed, at::kBFloat16);
  EXPECT_EQ(bytes.live(), 512 * 1024 * 2);
  EXPECT_EQ(bytes.peak(), 512 * 1024 * 2);
}

}  // namespace
}  // namespace trainer::fp8
