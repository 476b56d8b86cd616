/// @file What a trial of CUDA kernels refuses (trial_checks.hpp): an adapter's product with parts that are wrong, which
/// the data's rounding to bf16 would hide; and that it is made without TF32 where that is on.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <sdk/src/fused/low_rank_parts.hpp>
#include <sdk/src/fused/trial_checks.hpp>
#include <trainer/sdk/ops/fused.hpp>

#include <stdexcept>

namespace trainer::fused {
namespace {

using at::Tensor;

Tensor normal(uint64_t seed, at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed), at::kDouble).to(dtype);
}

TEST(TrialChecks, ProductsOfWrongPartsAreRefused) {
  swiglu(at::randn({1, 2}));  // installs the operators
  const auto op = [](const char* name) {
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow(name, "")
        .typed<Tensor(const Tensor&, const Tensor&, double)>();
  };
  const Tensor x = normal(1, {70, 300}, at::kBFloat16), weight = normal(2, {19, 300}), low = normal(3, {70, 19});
  const Tensor down = op("trainer::low_rank_down").call(x, weight, 0.5),
               outer = op("trainer::low_rank_outer").call(low, x, 0.5);
  ASSERT_EQ(down.scalar_type(), at::kFloat);
  EXPECT_NO_THROW(require_same_results({by_parts::down(x, weight, 0.5), by_parts::outer(low, x, 0.5)}, {down, outer}));
  // One part instead of three; the second part twice, as if it were the third.
  const auto first = [](const Tensor& a) { return a.to(at::kBFloat16).to(at::kFloat); };
  const auto twice = [&](const Tensor& a) { return a + first(a - first(a)); };
  for (const Tensor& wrong : {first(weight), twice(weight)})
    EXPECT_THROW(require_same_results({by_parts::down(x, wrong, 0.5)}, {down}), std::runtime_error);
  for (const Tensor& wrong : {first(low), twice(low)})
    EXPECT_THROW(require_same_results({by_parts::outer(wrong, x, 0.5)}, {outer}), std::runtime_error);
}

TEST(TrialChecks, LimitsAreTheResultsOwn) {
  for (const auto& [dtype, below, above] : {std::tuple{at::kFloat, 0.9e-4, 1.1e-4}, {at::kBFloat16, 1.8e-2, 2.4e-2}}) {
    const Tensor wanted = at::ones({3}, dtype);
    EXPECT_NO_THROW(require_same_results({wanted.to(at::kDouble) + below}, {wanted}));
    EXPECT_THROW(require_same_results({wanted.to(at::kDouble) + above}, {wanted}), std::runtime_error);
    EXPECT_THROW(require_same_results({wanted / 0 - wanted / 0}, {wanted}), std::runtime_error);
  }
}

TEST(TrialChecks, TF32IsOffMeanwhile) {
  at::Context& context = at::globalContext();
  const auto precision = [&] { return context.float32MatmulPrecision(); };
  for (const auto& [name, value, tf32] : {std::tuple{"high", at::Float32MatmulPrecision::HIGH, true},
                                          {"medium", at::Float32MatmulPrecision::MEDIUM, true},
                                          {"highest", at::Float32MatmulPrecision::HIGHEST, false}}) {
    context.setFloat32MatmulPrecision(name);
    EXPECT_EQ(context.allowTF32CuBLAS(), tf32) << name;
    {
      const FullPrecision full;
      EXPECT_EQ(precision(), at::Float32MatmulPrecision::HIGHEST) << name;
      EXPECT_FALSE(context.allowTF32CuBLAS()) << name;
    }
    EXPECT_EQ(precision(), value) << name;
    EXPECT_EQ(context.allowTF32CuBLAS(), tf32) << name;
  }
}

}  // namespace
}  // namespace trainer::fused
