/// @file What one device computes against what the CPU computes: fused operations and packed weights. On the CPU, where
/// it is a dry run, the reference is made of plain operators.
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/mm.h>
#include <c10/util/Exception.h>
#include <assembly/device.hpp>
#include <support/device.hpp>

#include <cmath>
#include <iomanip>
#include <memory>
#include <sstream>
#include <trainer/sdk/eight_bit_weights.hpp>
#include <w8a8/w8a8_weight.hpp>

#include "../unit/fused/operations.hpp"

namespace trainer::test {
namespace {

using testing::test_device;

std::vector<at::Tensor> moved(const std::vector<at::Tensor>& inputs, at::Device device) {
  std::vector<at::Tensor> list;
  for (const at::Tensor& input : inputs) list.push_back(input.detach().to(device).requires_grad_(true));
  return list;
}

class OnDevice : public ::testing::TestWithParam<Operation> {};

TEST_P(OnDevice, ComputesWhatTheCpuComputes) {
  const bool fused_reference = !test_device().is_cpu();
  for (const auto& [dtype, limit] : {std::pair{at::kFloat, 1e-4}, std::pair{at::kBFloat16, 2.4e-2}}) {
    const auto inputs = inputs_of(GetParam(), dtype);
    const auto expected = forward_and_backward(GetParam(), inputs, fused_reference);
    const auto got = forward_and_backward(GetParam(), moved(inputs, test_device()), true);
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].device(), test_device());
      EXPECT_LE(error(got[i].cpu(), expected[i]), limit) << dtype << (i == 0 ? ": result" : ": gradient ") << i;
    }
  }
}

TEST_P(OnDevice, TheSameBitsEveryTime) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto inputs = moved(inputs_of(GetParam(), dtype), test_device());
    const auto once = forward_and_backward(GetParam(), inputs, true);
    const auto again = forward_and_backward(GetParam(), inputs, true);
    for (std::size_t i = 0; i < once.size(); ++i) EXPECT_TRUE(at::equal(once[i], again[i])) << dtype << " " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Operations, OnDevice, ::testing::ValuesIn(operations()),
                         [](const auto& info) { return info.param.name; });

/// The state of each family of kernels goes into the test's results, for the report of tools/gpu_check.
TEST(Kernels, OfEveryFamilyAreUsed) {
  swiglu(at::linspace(0, 1, 2).view({1, 2}));  // installs the operators
  const auto states = c10::Dispatcher::singleton()
                          .findSchemaOrThrow("trainer::cuda_kernels", "")
                          .typed<std::vector<std::string>(at::Device)>()
                          .call(test_device());
  EXPECT_EQ(states.size(), 2 * 6U);
  for (std::size_t i = 0; i + 1 < states.size(); i += 2) {
    RecordProperty("kernel_" + states[i], states[i + 1]);
    EXPECT_EQ(states[i + 1], test_device().is_cuda() ? "used" : "the CPU's") << states[i];
  }
}

/// Collects warnings: the SDK warns when it does not trust its kernels on a device and takes LibTorch's operators.
class Warnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { text += warning.msg() + "\n"; }
  std::string text;
};

TEST(Kernels, OfThisBuildAreUsed) {
  Warnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  const Operation operation = operations().front();
  forward_and_backward(operation, moved(inputs_of(operation, at::kBFloat16), test_device()), true);
  EXPECT_EQ(warnings.text, "") << "a kernel computes wrong numbers here, or was not carried";
}

TEST(Fp8, ExpandsToTheSameBits) {
  const at::Tensor weight = at::linspace(-3, 5, 130 * 192).view({130, 192}).sin();
  for (const auto granularity :
       {eight_bits::Granularity::channel, eight_bits::Granularity::tensor, eight_bits::Granularity::block}) {
    eight_bits::Packed packed = eight_bits::quantize(weight, granularity, "weight");
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor expected = eight_bits::dequantize_by_operators(packed, dtype);
      const eight_bits::Packed there{packed.values.to(test_device()), packed.scale.to(test_device()),
                                     packed.column_block};
      EXPECT_TRUE(at::equal(eight_bits::dequantize(there, dtype).cpu(), expected)) << dtype;
    }
  }
}

/// Products of int8 are exact. Tensor cores of some GPUs keep sums of 8-bit floats to about 14 bits.
TEST(W8A8, ProductsAreTheCpus) {
  const at::Tensor weight = at::linspace(-3, 5, 320 * 192).view({320, 192}).sin();
  for (const eight_bits::Code code : {eight_bits::Code::e4m3, eight_bits::Code::int8}) {
    if (code == eight_bits::Code::e4m3 && assembly::capability_of(test_device()).value_or(9) < 8.85)
      continue;  // is refused
    const double limit = code == eight_bits::Code::int8 ? 1e-5 : 3e-3;
    constexpr double kBf16Limit = 8e-3;  // one rounding of each side: 4e-3
    for (const int64_t rows : {1, 16, 17, 64, 130}) {
      const auto packed = [&] {
        return eight_bits::quantize(weight, eight_bits::Granularity::channel, "weight", code);
      };
      const w8a8::W8A8Weight here(packed());
      w8a8::W8A8Weight there(packed());
      there.to(test_device());
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        const at::Tensor x = at::linspace(1, 90, rows * 192).view({rows, 192}).cos().to(dtype),
                         g = at::linspace(2, 70, rows * 320).view({rows, 320}).cos().to(dtype);
        const double most = dtype == at::kFloat ? limit : kBf16Limit;
        const at::Tensor y = there.matmul(x.to(test_device())).cpu(), dx = there.grad_input(g.to(test_device())).cpu();
        EXPECT_EQ(y.scalar_type(), dtype);
        EXPECT_EQ(dx.scalar_type(), dtype);
        EXPECT_LE(error(y, here.matmul(x)), most) << dtype << " " << rows;
        EXPECT_LE(error(dx, here.grad_input(g)), most) << dtype << " " << rows;
      }
    }
  }
}

/// Both ways to keep sums, as long as a model's; their errors go into the test's results, for the report of
/// tools/gpu_check.
TEST(W8A8, FastAccumulationIsNear) {
  if (assembly::capability_of(test_device()).value_or(9) < 8.85) GTEST_SKIP() << "no products of 8-bit floats";
  constexpr int64_t kRows = 64, kLong = 6144, kWide = 128;
  const at::Tensor weight = at::linspace(-3, 5, kWide * kLong).view({kWide, kLong}).mul(1e4).sin(),
                   x = at::linspace(1, 90, kRows * kLong).view({kRows, kLong}).mul(1e4).cos();
  const auto packed = [&] { return eight_bits::quantize(weight, eight_bits::Granularity::channel, "weight"); };
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const eight_bits::Rows rows = eight_bits::quantize_rows(x.to(dtype), eight_bits::Code::e4m3);
    const at::Tensor exact = at::mm(rows.values.to(at::kFloat).to(at::kDouble) * rows.scale,
                                    (packed().values.to(at::kFloat).to(at::kDouble) * packed().scale).t());
    for (const bool fast : {false, true}) {
      w8a8::W8A8Weight there(packed(), std::make_shared<w8a8::Shared>(fast));
      there.to(test_device());
      const at::Tensor apart = there.matmul(x.to(dtype).to(test_device())).cpu().to(at::kDouble) - exact;
      const double off = std::sqrt((apart.square().sum() / exact.square().sum()).item<double>());
      std::ostringstream text;
      text << std::scientific << std::setprecision(2) << off;
      RecordProperty(std::string("figure_") + (fast ? "fast" : "exact") + (dtype == at::kFloat ? "_fp32" : "_bf16"),
                     text.str());
      EXPECT_LE(off, fast ? 3e-2 : dtype == at::kFloat ? 3e-3 : 5e-3) << dtype;
    }
  }
}

}  // namespace
}  // namespace trainer::test
