#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <weights/convert.hpp>

#include <cmath>
#include <limits>

namespace trainer::weights {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Convert, TypesMapBothWays) {
  int known = 0;
  for (int i = 0; i <= static_cast<int>(Dtype::u64); ++i) {
    const auto dtype = static_cast<Dtype>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
    const auto type = scalar_type(dtype);
    if (!type) continue;
    ++known;
    EXPECT_EQ(file_dtype(*type), dtype);
    EXPECT_EQ(at::elementSize(*type) * 8, dtype_bits(dtype)) << dtype_name(dtype);
  }
  EXPECT_EQ(known, 19);
  for (const Dtype dtype : {Dtype::f4, Dtype::f6_e2m3, Dtype::f6_e3m2}) EXPECT_EQ(scalar_type(dtype), std::nullopt);
  EXPECT_EQ(scalar_type(Dtype::f8_e4m3), at::kFloat8_e4m3fn);
  EXPECT_EQ(scalar_type(Dtype::f8_e4m3fnuz), at::kFloat8_e4m3fnuz);
  EXPECT_EQ(file_dtype(at::kComplexDouble), std::nullopt);
  EXPECT_EQ(dtype_from_name("f32"), std::nullopt);
  EXPECT_EQ(known_dtypes().substr(0, 22), "BOOL, F4, F6_E2M3, F6_");
}

TEST(Finite, FindsOneBadElementInEveryType) {
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kFloat8_e5m2, at::kComplexFloat}) {
    for (const float bad : {kInf, -kInf, kNan}) {
      at::Tensor values = at::zeros({7, 11}, at::kFloat);
      EXPECT_TRUE(all_finite(values.to(type))) << type;
      values[6][10] = bad;
      EXPECT_FALSE(all_finite(values.to(type))) << type << " " << bad;
    }
  }
  const at::Tensor e4m3 = at::tensor({1.0f, kNan}).to(at::kFloat8_e4m3fn);
  EXPECT_FALSE(all_finite(e4m3));
  EXPECT_TRUE(all_finite(e4m3.narrow(0, 0, 1)));
}

TEST(Finite, WhatHasNoSuchValuesIsFinite) {
  for (const at::ScalarType type : {at::kBool, at::kByte, at::kUInt16, at::kUInt32, at::kUInt64, at::kLong})
    EXPECT_TRUE(all_finite(at::ones({3}, at::kInt).to(type))) << type;
  EXPECT_TRUE(all_finite(at::full({3}, 1e300, at::kDouble))) << "too large for fp32 only";
}

TEST(Finite, LooksAtEveryPieceOfALargeFloat8Tensor) {
  at::Tensor bytes = at::zeros({(int64_t{1} << 22) + 3}, at::kByte);
  EXPECT_TRUE(all_finite(bytes.view(at::kFloat8_e4m3fn)));
  bytes[(int64_t{1} << 22) + 2] = 0x7F;  // NaN
  EXPECT_FALSE(all_finite(bytes.view(at::kFloat8_e4m3fn)));
}

TEST(Finite, IntegersAndEmptyTensorsAre) {
  EXPECT_TRUE(all_finite(at::full({3}, std::numeric_limits<int64_t>::min(), at::kLong)));
  EXPECT_TRUE(all_finite(at::zeros({3}, at::kBool)));
  EXPECT_TRUE(all_finite(at::empty({0, 3}, at::kFloat)));
  EXPECT_TRUE(all_finite(at::full({4}, std::numeric_limits<float>::max())));
  EXPECT_TRUE(all_finite(at::arange(12, at::kFloat).view({3, 4}).t()));
}

}  // namespace
}  // namespace trainer::weights
