/// @file The passes around 8-bit products on one device against LibTorch's plain operators on the CPU. On the CPU,
/// where it is a dry run, those are its loops.
#include <ATen/TensorOperators.h>
#include <ATen/ops/linspace.h>
#include <gtest/gtest.h>
#include <assembly/device.hpp>
#include <support/device.hpp>
#include <trainer/sdk/ops/eight_bits.hpp>

#include <w8a8/product.hpp>

#include "../unit/eight_bits/cases.hpp"

namespace trainer::test {
namespace {

using testing::test_device;

class EightBitsOnDevice : public ::testing::TestWithParam<EightBitsCase> {};

TEST_P(EightBitsOnDevice, ComputesTheBitsOfTheCpu) {
  const auto got = GetParam().run(test_device()), expected = GetParam().expected();
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].device(), test_device());
    EXPECT_TRUE(same_numbers(got[i], expected[i])) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, EightBitsOnDevice, ::testing::ValuesIn(eight_bits_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(EightBitKernels, AreUsedOnCudaAlone) {
  const at::Tensor x = at::linspace(0, 1, 8).to(test_device());
  EXPECT_EQ(eight_bits::has_kernels(x), test_device().is_cuda()) << "they compute wrong numbers, or were not carried";
  EXPECT_FALSE(eight_bits::has_kernels(x.to(at::kDouble)));
}

/// Rows and channels of very different size: a product that took the wrong ones would be far off.
TEST(EightBitKernels, ScaledProductsAreTheCpus) {
  const at::Tensor sizes = at::linspace(-6, 6, 320).exp2().unsqueeze(1);
  const at::Tensor weight = at::linspace(-3, 5, 320 * 192).view({320, 192}).sin() * sizes;
  for (const eight_bits::Code code : {eight_bits::Code::e4m3, eight_bits::Code::int8}) {
    if (code == eight_bits::Code::e4m3 && assembly::capability_of(test_device()).value_or(9) < 8.85)
      continue;  // is refused
    const eight_bits::Packed packed = eight_bits::quantize(weight, eight_bits::Granularity::channel, "weight", code);
    const at::Tensor values = packed.values.to(test_device()), channels = packed.scale.view({-1});
    for (const auto& [dtype, limit] : {std::pair{at::kFloat, 3e-3}, std::pair{at::kBFloat16, 8e-3}})
      for (const int64_t rows : {0, 1, 31, 33, 130}) {
        const at::Tensor tall = at::linspace(-5, 5, rows).exp2().unsqueeze(1);
        const at::Tensor x = (at::linspace(1, 90, rows * 192).view({rows, 192}).cos() * tall).to(dtype),
                         g = (at::linspace(2, 70, rows * 320).view({rows, 320}).cos() * tall).to(dtype);
        w8a8::Shared shared;
        const at::Tensor y = w8a8::scaled_product(x.to(test_device()), {}, values.t(), channels.to(test_device()),
                                                  shared),
                         dx = w8a8::scaled_product(g.to(test_device()), channels.to(test_device()), values, {}, shared);
        const at::Tensor wide = packed.values.to(at::kFloat).to(at::kDouble) * packed.scale;
        EXPECT_EQ(y.scalar_type(), dtype);
        EXPECT_EQ(dx.sizes(), x.sizes());
        if (rows == 0) continue;
        const eight_bits::Rows a = eight_bits::quantize_rows(x, code),
                               b = eight_bits::quantize_rows(g.to(at::kFloat) * channels, code);
        const auto by_row = [&](const at::Tensor& got, const at::Tensor& expected) {
          const at::Tensor largest = expected.abs().amax({1}, true);
          return ((got.cpu().to(at::kDouble) - expected) / largest).abs().max().item<double>();
        };
        const at::Tensor by_channel = a.values.to(at::kFloat).to(at::kDouble).mm(wide.t()) * a.scale;
        EXPECT_LE(by_row(y, by_channel), limit) << dtype << " " << rows;
        EXPECT_LE(
            by_row(
                dx,
                (b.values.to(at::kFloat).to(at::kDouble) * b.scale).mm(packed.values.to(at::kFloat).to(at::kDouble))),
            limit)
            << dtype << " " << rows;
      }
  }
}

}  // namespace
}  // namespace trainer::test
