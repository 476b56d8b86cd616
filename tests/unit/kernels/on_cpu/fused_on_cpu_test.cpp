/// @file The CUDA kernels of the fused operations (checks.hpp): in sizes that fill no block and no warp, more rows than
/// a block takes, no rows; and where packs of elements fit, with each operand in turn where they do not.
#include <limits>

#include "checks.hpp"

namespace trainer::kernels {
namespace {

using test::Buffer;
using test::cuda;
using test::Role;

template <typename T>
class FusedOnCpu : public ::testing::Test {};
using Elements = ::testing::Types<float, Bfloat16>;
TYPED_TEST_SUITE(FusedOnCpu, Elements);

TYPED_TEST(FusedOnCpu, ModulatedNorm) {
  struct Rows {
    int64_t samples, rows, width;
  };
  for (const Rows& s : {Rows{2, 3, 70}, {1, 1, 1}, {1, 65, 300}, {3, 2, 64}, {1, 2, 256}, {2, 2, 257}, {1, 0, 8}})
    for (const bool odd : {false, true})
      test::check_modulated_norm<TypeParam>({s.samples, s.rows, s.width, odd ? s.width + 3 : 0, odd});
  test::check_modulated_norm<TypeParam>({1, 1, 6144, 6144});
  test::check_modulated_norm<TypeParam>({2, 9, 1024, 1024, 0, /*middle=*/20});
}

/// More rows than the warps of a block take in one run, columns beside a warp's.
TYPED_TEST(FusedOnCpu, SumsOfManyRows) {
  test::check_modulated_norm_sums<TypeParam>({2, 1030, 40, 40});
  test::check_gated_residual<TypeParam>({2, 1030, 40, 40});
}

TYPED_TEST(FusedOnCpu, NormRope) {
  for (const test::HeadShape& s : {test::HeadShape{2, 35, 3, 70},
                                   {1, 1, 1, 2},
                                   {1, 9, 3, 128},
                                   {1, 0, 3, 4},
                                   {2, 3, 19, 6},
                                   {1, 130, 1, 64},
                                   {2, 5, 2, 8, test::kNone, 1, true}})
    test::check_norm_rope<TypeParam>(s);
  for (int odd = 0; odd <= 5; ++odd)
    for (const int64_t gap : {0, 1, 8}) test::check_norm_rope<TypeParam>({2, 2, 3, 8, odd, gap, gap == 8});
}

TYPED_TEST(FusedOnCpu, SwiGlu) {
  for (const int64_t before : {0, 5})
    for (const auto& [rows, width] :
         {std::pair<int64_t, int64_t>{6, 70}, {1, 1}, {65, 300}, {6, 64}, {0, 8}, {2, 2056}})
      test::check_swiglu<TypeParam>({rows, width, before, 3});
  test::check_swiglu<TypeParam>({3, 5, 3000});
}

/// Gate, up and the rows before them as models have them: all in packs, or each in turn not.
TYPED_TEST(FusedOnCpu, SwiGluInPacks) {
  for (int odd = 0; odd <= 4; ++odd)
    for (const int64_t before : {0, 16, 17})
      for (const int64_t gap : {0, 8, 1}) test::check_swiglu<TypeParam>({3, 24, before, gap, odd});
}

TYPED_TEST(FusedOnCpu, GatedResidual) {
  for (const test::GateShape& s :
       {test::GateShape{2, 3, 70, 70}, {1, 1, 1, 1}, {1, 65, 300, 300}, {3, 2, 64, 64}, {1, 0, 8, 8}})
    test::check_gated_residual<TypeParam>(s);
}

/// A gate for all samples or one for each, at steps of its own.
TYPED_TEST(FusedOnCpu, GatedResidualInPacks) {
  for (int odd = 0; odd <= 5; ++odd)
    for (const int64_t width : {24, 2056, 12})
      for (const int64_t step : {int64_t{0}, width + 8, width + 3})
        test::check_gated_residual<TypeParam>({width > 1000 ? 2 : 3, width > 1000 ? 2 : 5, width, step, odd});
}

/// Rows beyond the last whole sample would be gated, but missing in the gate's sums.
TEST(FusedOnCpuSizes, SamplesAreWhole) {
  Buffer<float> x(Role::input, 5 * 8), moments(Role::input, 10);
  Buffer<float> to(Role::output, 5 * 8);
  std::fill(to.begin(), to.end(), test::Result::kPattern);
  for (const int64_t rows_per_sample : {2, 0, -1, 6}) {
    const GatedResidual gated{Dtype::f32, 5, 8, rows_per_sample, x.data(), x.data(), x.data(), 8};
    EXPECT_NE(cuda().gated_residual(&gated, to.data(), nullptr), 0);
    EXPECT_NE(cuda().gated_residual_grad(&gated, x.data(), to.data(), nullptr), 0);
    EXPECT_NE(cuda().gated_residual_sums(&gated, x.data(), to.data(), nullptr), 0);
    const ModulatedNorm norm{Dtype::f32, 5, 8, rows_per_sample, 1e-6, x.data(), x.data(), x.data(), 8, 8};
    EXPECT_NE(cuda().modulated_norm(&norm, to.data(), nullptr), 0);
    EXPECT_NE(cuda().modulated_norm_grad(&norm, x.data(), to.data(), nullptr, nullptr), 0);
    EXPECT_NE(cuda().modulated_norm_sums(&norm, x.data(), moments.data(), to.data(), to.data(), nullptr), 0);
  }
  EXPECT_TRUE(std::all_of(to.begin(), to.end(), [](unsigned char byte) { return byte == test::Result::kPattern; }));
}

/// What part `slot` of factor x is to be; `rest` becomes what it leaves out.
Bfloat16 part_of(float& rest) {
  Bfloat16 part;
  round_to(rest, &part);
  const float taken = to_float(part);
  rest = std::isfinite(taken) ? rest - taken : 0.0F;
  return part;
}

/// More elements than a block's threads; side by side and one below another; of every size, and not finite.
TEST(Bf16PartsOnCpu, AreTheNumberToTheLastBit) {
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{70, 300}, {5, 3}, {1, 1}, {2, 6144}, {0, 8}})
    for (const bool beside : {false, true})
      for (const float factor : {1.0F, 0.75F, 0.3F}) {
        const int64_t count = rows * width;
        Buffer<float> x(Role::input, count);
        x.random(7);
        for (int64_t i = 0; i < count; ++i) x[i] = std::ldexp(x[i], static_cast<int>(i % 90) - 45);
        const float odd[] = {INFINITY, -INFINITY, NAN, 0.0F, -0.0F};
        if (count > 10) std::copy(std::begin(odd), std::end(odd), x.data());
        Buffer<Bfloat16> y(Role::output, 3 * count);
        Bf16Parts a{rows,      width,   factor, x.data(), beside ? width : count, beside ? 3 * width : width,
                    {0, 1, 2}, y.data()};
        for (const bool in_order : {true, false}) {
          if (!in_order) a.order[0] = 2, a.order[1] = 0, a.order[2] = 0;
          if (!test::same_in_every_way("bf16_parts", {y}, [&] { return cuda().bf16_parts(&a, nullptr); })) return;
          int64_t others = 0, inexact = 0;
          for (int64_t i = 0; i < count; ++i) {
            volatile float product = factor * x[i];  // rounded, whatever the compiler may fuse
            float rest = product;
            const Bfloat16 parts[] = {part_of(rest), part_of(rest), part_of(rest)};
            double sum = 0;
            for (int slot = 0; slot < 3; ++slot) {
              const Bfloat16 got = y[slot * a.slot_step + i / width * a.row_step + i % width];
              others += got.bits != parts[a.order[slot]].bits;
              sum += to_float(got);
            }
            inexact += in_order && std::isfinite(product) && sum != product;
          }
          EXPECT_EQ(others, 0) << "parts of " << rows << " x " << width << " times " << factor;
          EXPECT_EQ(inexact, 0) << "sums of parts, " << rows << " x " << width << " times " << factor;
        }
      }
}

}  // namespace
}  // namespace trainer::kernels
