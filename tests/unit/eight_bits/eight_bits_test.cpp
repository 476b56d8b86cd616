/// @file 8-bit numbers: their arithmetic one by one against LibTorch's conversions, and the passes on the CPU, which
/// the kernels of a GPU are compared with.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>
#include <kernels/eight_bits_numbers.h>
#include <trainer/sdk/ops/eight_bits.hpp>

#include <algorithm>
#include <cmath>
#include <trainer/sdk/eight_bit_weights.hpp>
#include <w8a8/product.hpp>

#include "../fp8_weight_only/numbers.hpp"
#include "cases.hpp"

namespace trainer::kernels {
namespace {

void expect_same(float got, float expected, uint32_t code) {
  if (std::isnan(expected))
    EXPECT_TRUE(std::isnan(got)) << code;
  else
    EXPECT_EQ(bits_of(got), bits_of(expected)) << code;
}

TEST(Numbers, EveryCodeIsLibTorchsNumber) {
  for (uint32_t code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    expect_same(to_float(E4m3{byte}), c10::Float8_e4m3fn(byte, c10::Float8_e4m3fn::from_bits()), code);
    expect_same(to_float(E5m2{byte}), c10::Float8_e5m2(byte, c10::Float8_e5m2::from_bits()), code);
    expect_same(to_float(static_cast<int8_t>(byte)), static_cast<float>(static_cast<int8_t>(byte)), code);
  }
  for (uint32_t code = 0; code < 65536; ++code) {
    const auto half = static_cast<uint16_t>(code);
    expect_same(to_float(Float16{half}), c10::Half(half, c10::Half::from_bits()), code);
    expect_same(to_float(Bfloat16{half}), c10::BFloat16(half, c10::BFloat16::from_bits()), code);
  }
}

/// What LibTorch makes of it, for the formats here.
void expect_roundings(float number) {
  E4m3 e4m3{};
  round_to(number, &e4m3);
  const float clamped = std::isnan(number) ? number : std::clamp(number, -448.0F, 448.0F);
  expect_same(to_float(e4m3), c10::Float8_e4m3fn(clamped), bits_of(number));
  int8_t whole = 1;
  round_to(number, &whole);
  EXPECT_EQ(whole, std::isnan(number) ? 0 : std::clamp(std::nearbyint(number), -127.0F, 127.0F)) << number;
  Float16 half{};
  round_to(number, &half);
  expect_same(to_float(half), c10::Half(number), bits_of(number));
  Bfloat16 brain{};
  round_to(number, &brain);
  expect_same(to_float(brain), c10::BFloat16(number), bits_of(number));
}

TEST(Numbers, EveryBfloat16IsRoundedAsLibTorchRoundsIt) {
  for (uint32_t code = 0; code < 65536; ++code) expect_roundings(float_of(code << 16));
}

TEST(Numbers, SoAreThoseAcrossAllOfFp32) {
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 20011)
    expect_roundings(float_of(static_cast<uint32_t>(bits)));
}

/// Halfway between two numbers of a format, and the nearest fp32 numbers on both sides.
TEST(Numbers, TiesGoToEven) {
  const auto around = [](float a, float b) {
    if (!std::isfinite(a) || !std::isfinite(b)) return;
    const float middle = (a + b) / 2;
    for (const float number : {std::nextafter(middle, a), middle, std::nextafter(middle, b)}) {
      expect_roundings(number);
      expect_roundings(-number);
    }
  };
  for (uint32_t code = 0; code < 0x7e; ++code)
    around(to_float(E4m3{static_cast<uint8_t>(code)}), to_float(E4m3{static_cast<uint8_t>(code + 1)}));
  for (uint32_t code = 0; code < 0x7c00; ++code)
    around(to_float(Float16{static_cast<uint16_t>(code)}), to_float(Float16{static_cast<uint16_t>(code + 1)}));
  for (int code = 0; code < 130; ++code) around(static_cast<float>(code), static_cast<float>(code + 1));
  for (const float edge : {447.9F, 448.0F, 463.9F, 464.0F, 464.1F, 479.9F, 480.0F, 1e30F, INFINITY, 65519.9F, 65520.0F})
    expect_roundings(edge), expect_roundings(-edge);
}

}  // namespace
}  // namespace trainer::kernels

namespace trainer::test {
namespace {

class EightBits : public ::testing::TestWithParam<EightBitsCase> {};

TEST_P(EightBits, IsWhatThePlainOperatorsMake) {
  const auto got = GetParam().run(at::kCPU), expected = GetParam().expected();
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_numbers(got[i], expected[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(Cases, EightBits, ::testing::ValuesIn(eight_bits_cases()),
                         [](const auto& info) { return info.param.name; });

/// What the strategies do on the CPU without them.
TEST(EightBits, RowsAreThoseOfTheStrategy) {
  const at::Tensor x = fp8::testing::random_matrix(37, 130), factors = fp8::testing::random_matrix(1, 130, 2)[0].abs();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const eight_bits::Code code : {eight_bits::Code::e4m3, eight_bits::Code::int8}) {
      const at::ScalarType to = code == eight_bits::Code::int8 ? at::kChar : at::kFloat8_e4m3fn;
      const eight_bits::Rows plain = eight_bits::quantize_rows(x.to(dtype), code),
                             folded = eight_bits::quantize_rows(x.to(dtype) * factors, code);
      const eight_bits::Rows rows = eight_bits::quantize_rows(x.to(dtype), {}, to),
                             scaled = eight_bits::quantize_rows(x.to(dtype), factors, to);
      EXPECT_TRUE(same_numbers(rows.values, plain.values) && same_numbers(rows.scale, plain.scale)) << dtype;
      EXPECT_TRUE(same_numbers(scaled.values, folded.values) && same_numbers(scaled.scale, folded.scale)) << dtype;
    }
}

TEST(EightBits, WeightsAreExpandedToTheSameBits) {
  const at::Tensor weight = fp8::testing::random_matrix(70, 192);
  for (const auto granularity :
       {eight_bits::Granularity::channel, eight_bits::Granularity::tensor, eight_bits::Granularity::block})
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const eight_bits::Packed packed = eight_bits::quantize(weight, granularity, "weight");
      const at::Tensor got = eight_bits::expand(packed.values, packed.scale, packed.column_block, dtype);
      EXPECT_TRUE(at::equal(got, eight_bits::dequantize(packed, dtype))) << dtype;
    }
}

TEST(EightBits, ResultsDoNotDependOnThreads) {
  const at::Tensor x = fp8::testing::random_matrix(300, 500).to(at::kBFloat16);
  const int threads = at::get_num_threads();
  const auto once = eight_bits::quantize_rows(x, {}, at::kFloat8_e4m3fn);
  at::set_num_threads(threads == 1 ? 3 : 1);
  const auto again = eight_bits::quantize_rows(x, {}, at::kFloat8_e4m3fn);
  at::set_num_threads(threads);
  EXPECT_TRUE(same_numbers(once.values, again.values) && same_numbers(once.scale, again.scale));
}

TEST(EightBits, WhatDoesNotFitIsRefused) {
  const at::Tensor x = at::ones({4, 6}), bytes = at::empty({4, 6}, at::kChar).zero_();
  EXPECT_THROW(eight_bits::quantize_rows(x[0], {}, at::kChar), c10::Error) << "no matrix";
  EXPECT_THROW(eight_bits::quantize_rows(x, at::ones({4}), at::kChar), c10::Error) << "factors of rows";
  EXPECT_THROW(eight_bits::quantize_rows(x, {}, at::kFloat8_e5m2), c10::Error);
  EXPECT_THROW(eight_bits::quantize_rows(bytes, {}, at::kChar), c10::Error);
  EXPECT_THROW(eight_bits::scale_sums(x, at::ones({6, 1}), {}, at::kFloat), c10::Error) << "scales of columns";
  EXPECT_THROW(eight_bits::scale_sums(x, at::ones({4, 1}, at::kHalf), {}, at::kFloat), c10::Error);
  EXPECT_THROW(eight_bits::scale_sums(x, at::ones({4, 1}), {}, at::kChar), c10::Error);
  EXPECT_THROW(eight_bits::expand(bytes, at::ones({4, 1}), 5, at::kFloat), c10::Error) << "one column is left over";
  EXPECT_THROW(eight_bits::expand(bytes, at::ones({3, 1}), 6, at::kFloat), c10::Error);
  EXPECT_THROW(eight_bits::expand(x, at::ones({4, 1}), 6, at::kFloat), c10::Error) << "no codes";
  EXPECT_THROW(eight_bits::transposed(x), c10::Error);
}

TEST(EightBits, HaveKernelsOnCudaAlone) { EXPECT_FALSE(eight_bits::has_kernels(at::ones({1}))); }

}  // namespace
}  // namespace trainer::test
