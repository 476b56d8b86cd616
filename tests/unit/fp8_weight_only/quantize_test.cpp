/// @file The quantiser against values worked out by hand, its clamp, its refusals and its error bounds.
#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <trainer/sdk/eight_bit_weights.hpp>
#include <trainer/sdk/error.hpp>

#include <cmath>
#include <limits>
#include <support/parity.hpp>

#include "numbers.hpp"

namespace trainer::fp8 {
namespace {

using namespace eight_bits;

using testing::random_matrix;

std::vector<float> list(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kFloat).contiguous().view(-1);
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}
std::vector<int> codes(const at::Tensor& values) {
  const at::Tensor flat = values.view(at::kByte).view(-1);
  return {flat.const_data_ptr<uint8_t>(), flat.const_data_ptr<uint8_t>() + flat.numel()};
}

TEST(Quantize, ChannelByHand) {
  // Row 0: scale 1, so the values are rounded to e4m3: 20 lies between 20 (4-bit significand) exactly, 17 is a tie
  // between 16 and 18 and goes to the even 16, 19 to 20; row 1: scale 2^-6 / 448.
  const at::Tensor w = at::tensor({448.0F, 20.0F, 17.0F, 19.0F, 0.015625F, -0.0078125F, 0.0F, 0.001F}).view({2, 4});
  const Packed packed = quantize(w, Granularity::channel, "w");
  EXPECT_EQ(packed.values.scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_EQ(packed.column_block, 4);
  EXPECT_EQ(packed.scale.sizes(), (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(list(packed.scale), (std::vector<float>{1.0F, 0.015625F / 448.0F}));
  EXPECT_EQ(list(packed.values), (std::vector<float>{448, 20, 16, 20, 448, -224, 0, 28}));
  EXPECT_EQ(codes(packed.values), (std::vector<int>{0x7e, 0x5a, 0x58, 0x5a, 0x7e, 0xf6, 0x00, 0x5e}));
}

TEST(Quantize, OneScaleForTheTensor) {
  const at::Tensor w = at::tensor({1.0F, -2.0F, 896.0F, 3.0F}).view({2, 2});
  const Packed packed = quantize(w, Granularity::tensor, "w");
  EXPECT_EQ(packed.scale.sizes(), (std::vector<int64_t>{1, 1}));
  EXPECT_EQ(list(packed.scale), (std::vector<float>{2.0F}));
  EXPECT_EQ(list(packed.values), (std::vector<float>{0.5F, -1.0F, 448.0F, 1.5F}));
  EXPECT_EQ(list(dequantize(packed, at::kFloat)), list(w));
}

TEST(Quantize, BlocksOf64AlongTheInput) {
  at::Tensor w = at::ones({2, 128});
  w.narrow(1, 64, 64) *= 448;
  w[1] *= -2;
  const Packed packed = quantize(w, Granularity::block, "w");
  EXPECT_EQ(packed.column_block, 64);
  EXPECT_EQ(list(packed.scale), (std::vector<float>{1.0F / 448.0F, 1.0F, 2.0F / 448.0F, 2.0F}));
  EXPECT_TRUE(at::equal(at::abs(packed.values.to(at::kFloat)), at::full({2, 128}, 448.0F)));
}

TEST(Quantize, BlockFallsBackToChannel) {
  const at::Tensor w = random_matrix(8, 96);
  const Packed block = quantize(w, Granularity::block, "w"), channel = quantize(w, Granularity::channel, "w");
  EXPECT_EQ(block.column_block, 96);
  EXPECT_TRUE(test::same_bits(block.scale, channel.scale));
  EXPECT_TRUE(test::same_bits(block.values.view(at::kByte), channel.values.view(at::kByte)));
}

/// LibTorch 2.11 casts what is beyond 464 to NaN; should that change, saturated_cast stays right.
TEST(Quantize, ClampsBeforeTheCast) {
  const at::Tensor large = at::tensor({448.0F, 449.0F, 464.0F, 465.0F, -480.0F, 1e30F});
  const std::vector<float> cast = list(large.to(at::kFloat8_e4m3fn));
  EXPECT_EQ(cast[2], 448);
  EXPECT_TRUE(std::isnan(cast[3]) || cast[3] == 448);
  EXPECT_EQ(list(saturated_cast(large.clone())), (std::vector<float>{448, 448, 448, 448, -448, 448}));
}

/// amax / 448 rounds down for some amax, so that amax / scale is above 448.
TEST(Quantize, LargestValueIsAlwaysTheLargestCode) {
  int above = 0;
  for (const float amax : {0.7F, 0.9F, 1.1F, 1.7F, 2.3F, 3.9F, 1e-3F, 7e5F, 3.4028235e38F}) {
    above += amax / (amax / 448.0F) > 448.0F ? 1 : 0;
    const Packed packed = quantize(at::tensor({amax, -amax}).view({1, 2}), Granularity::channel, "w");
    EXPECT_EQ(list(packed.values), (std::vector<float>{448, -448})) << amax;
  }
  EXPECT_GT(above, 0) << "the case does not occur: choose other numbers";
}

TEST(Quantize, ZeroRowsAndTinyNumbers) {
  at::Tensor w = at::zeros({3, 64});
  w[1][5] = std::numeric_limits<float>::denorm_min();
  w[2][7] = 1e-36F;
  for (const Granularity granularity : {Granularity::channel, Granularity::block}) {
    const Packed packed = quantize(w, granularity, "w");
    EXPECT_EQ(packed.scale[0][0].item<float>(), 1.0F);
    EXPECT_EQ(packed.scale[1][0].item<float>(), std::numeric_limits<float>::min());
    const at::Tensor dense = dequantize(packed, at::kFloat);
    EXPECT_TRUE(at::isfinite(dense).all().item<bool>());
    EXPECT_EQ(dense[0].abs().sum().item<float>(), 0.0F);
    EXPECT_NEAR(dense[2][7].item<float>() / 1e-36F, 1, 0.07);
  }
  EXPECT_EQ(list(quantize(at::zeros({2, 2}), Granularity::tensor, "w").scale), (std::vector<float>{1.0F}));
}

TEST(Quantize, RefusesWhatIsNotFinite) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                           -std::numeric_limits<double>::infinity(), 1e39}) {
    at::Tensor w = random_matrix(300, 8).to(at::kDouble);
    w[299][3] = bad;
    for (const Granularity granularity : {Granularity::channel, Granularity::tensor, Granularity::block}) {
      try {
        quantize(w, granularity, "blocks.0.up.weight");
        FAIL() << bad;
      } catch (const Error& error) {
        EXPECT_EQ(error.exit_code(), ExitCode::bad_input);
        EXPECT_EQ(error.code(), "FP8_NOT_FINITE");
        EXPECT_EQ(std::string(error.what()),
                  "tensor \"blocks.0.up.weight\" holds NaN, infinity or numbers beyond fp32: it cannot be packed into "
                  "8 bits; the file is damaged");
      }
    }
  }
}

TEST(Quantize, DoesNotDependOnHowManyRowsAreTakenAtATime) {
  const at::Tensor w = random_matrix(700, 1024);  // several portions of 256 rows
  for (const Granularity granularity : {Granularity::channel, Granularity::block}) {
    const Packed whole = quantize(w, granularity, "w");
    for (const int64_t row : {0, 255, 256, 699}) {
      const Packed one = quantize(w.narrow(0, row, 1), granularity, "w");
      EXPECT_TRUE(test::same_bits(one.scale, whole.scale.narrow(0, row, 1)));
      EXPECT_TRUE(test::same_bits(one.values.view(at::kByte), whole.values.narrow(0, row, 1).view(at::kByte)));
    }
  }
}

/// |w - packed| is at most half a step of 2^-3 relative to the value, or half of e4m3's smallest step 2^-9 below.
TEST(Quantize, ErrorBoundsOfEveryElement) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor w = random_matrix(64, 256).to(dtype);
    for (const Granularity granularity : {Granularity::channel, Granularity::tensor, Granularity::block}) {
      const Packed packed = quantize(w, granularity, "w");
      const at::Tensor exact = w.to(at::kDouble);
      const at::Tensor error = at::abs(dequantize(packed, at::kFloat).to(at::kDouble) - exact);
      const at::Tensor scale = packed.scale.repeat_interleave(packed.column_block, 1).to(at::kDouble);
      const at::Tensor bound = at::maximum(at::abs(exact) / 16, scale * std::ldexp(1.0, -10)) * 1.0001;
      EXPECT_TRUE((error <= bound).all().item<bool>()) << static_cast<int>(granularity) << ' ' << dtype;
    }
  }
}

/// Relative l2 errors on normal numbers; when rows differ much in size, one scale for all loses the small ones.
TEST(Quantize, FinerScalesLoseLess) {
  const at::Tensor w = random_matrix(256, 512);
  const auto error = [&](Granularity granularity, const at::Tensor& matrix) {
    return test::l2_error(dequantize(quantize(matrix, granularity, "w"), at::kFloat), matrix);
  };
  EXPECT_NEAR(error(Granularity::tensor, w), 0.02638, 1e-4);
  EXPECT_NEAR(error(Granularity::channel, w), 0.02625, 1e-4);
  EXPECT_NEAR(error(Granularity::block, w), 0.02502, 1e-4);
  at::Tensor uneven = w.clone();
  uneven.narrow(0, 1, 255) *= 1e-6;
  const at::Tensor small = uneven.narrow(0, 1, 255);
  const auto small_error = [&](Granularity granularity) {
    return test::l2_error(dequantize(quantize(uneven, granularity, "w"), at::kFloat).narrow(0, 1, 255), small);
  };
  EXPECT_EQ(small_error(Granularity::tensor), 1.0) << "all of them round to zero";
  EXPECT_LT(small_error(Granularity::channel), 0.03);
}

TEST(Granularity, Names) {
  EXPECT_EQ(granularity_from("channel", "memory.a.granularity"), Granularity::channel);
  EXPECT_EQ(granularity_from("tensor", "memory.a.granularity"), Granularity::tensor);
  EXPECT_EQ(granularity_from("block", "memory.a.granularity"), Granularity::block);
  try {
    granularity_from("row", "memory.a.granularity");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "memory.a.granularity: \"row\" is none of channel, tensor, block");
  }
}

TEST(Quantize, ScalesAreCountedBeforehand) {
  for (const Granularity granularity : {Granularity::channel, Granularity::tensor, Granularity::block})
    for (const int64_t in : {128, 100})
      EXPECT_EQ(scale_count(granularity, 24, in),
                quantize(testing::random_matrix(24, in), granularity, "a.weight").scale.numel());
}

}  // namespace
}  // namespace trainer::fp8
