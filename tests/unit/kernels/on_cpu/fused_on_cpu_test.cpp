/// @file The CUDA kernels of the fused operations, run on the CPU (cuda_on_cpu.hpp), against the CPU's own kernels: in
/// sizes that fill no block and no warp, more rows than a block takes, no rows; and where packs of elements fit, with
/// each operand in turn where they do not. Packs that are not aligned end the test (cuda_on_cpu.hpp).
#include <gtest/gtest.h>
#include <kernels/cpu.hpp>
#include <kernels/cuda.hpp>

#include <array>
#include <cmath>
#include <limits>
#include <tuple>

#include "buffers.hpp"

namespace trainer::kernels {
namespace {

using test::Buffer;
using test::cuda_on_cpu;

template <typename T>
constexpr Dtype kDtype = std::is_same_v<T, float> ? Dtype::f32 : Dtype::bf16;
/// Of the largest expected number; both sides sum in fp32, in orders of their own.
template <typename T>
constexpr double kLimit = std::is_same_v<T, float> ? 1e-5 : 8e-3;

/// Calls both sides with a buffer of `count` for the result, and compares.
template <typename T, typename Cuda, typename Cpu>
void compare(const char* what, int64_t count, double limit, const Cuda& cuda, const Cpu& cpu, int64_t offset = 0) {
  Buffer<T> got(count, offset), expected(count);
  ASSERT_EQ(cuda(got.data()), 0) << what;
  cpu(expected.data());
  EXPECT_TRUE(got.intact()) << what << " wrote beyond its result";
  double largest = 0, apart = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double wanted = to_float(expected[i]);
    largest = std::max(largest, std::abs(wanted));
    apart = std::max(apart, std::abs(to_float(got[i]) - wanted));
  }
  EXPECT_LE(apart, limit * largest) << what << " of " << count;
}

template <typename T>
class FusedOnCpu : public ::testing::Test {};
using Elements = ::testing::Types<float, Bfloat16>;
TYPED_TEST_SUITE(FusedOnCpu, Elements);

const CpuKernels& cpu() { return *cpu_levels().front(); }
int64_t chunks(int64_t count, int64_t each) { return (count + each - 1) / each; }

struct Samples {
  int64_t samples, rows, width;
};
constexpr Samples kSamples[] = {{2, 3, 70}, {1, 1, 1}, {1, 65, 300}, {3, 2, 64}, {1, 0, 8}};
/// Which operand begins one element behind a multiple of a pack, and at none.
constexpr int kNone = 0, kOperands = 5;

TYPED_TEST(FusedOnCpu, ModulatedNorm) {
  for (const Samples& s : kSamples) {
    const int64_t rows = s.samples * s.rows, count = rows * s.width, shared = s.samples * s.width;
    const auto x = Buffer<TypeParam>::random(count, 1), shift = Buffer<TypeParam>::random(shared, 2),
               scale = Buffer<TypeParam>::random(shared, 3), g = Buffer<TypeParam>::random(count, 4);
    const ModulatedNorm a{
        kDtype<TypeParam>, rows,    s.width, std::max<int64_t>(s.rows, 1), 1e-6, x.data(), shift.data(),
        scale.data(),      s.width, s.width};
    compare<TypeParam>(
        "forward", count, kLimit<TypeParam>, [&](void* y) { return cuda_on_cpu().modulated_norm(&a, y, nullptr); },
        [&](void* y) { cpu().modulated_norm(a, y, 0, rows); });
    Buffer<float> moments(2 * rows), moments_expected(2 * rows);
    compare<TypeParam>(
        "gradient", count, kLimit<TypeParam>,
        [&](void* y) { return cuda_on_cpu().modulated_norm_grad(&a, g.data(), y, moments.data(), nullptr); },
        [&](void* y) { cpu().modulated_norm_grad(a, g.data(), y, moments_expected.data(), 0, rows); });
    if (rows == 0) continue;
    for (const bool of_scale : {false, true})
      compare<TypeParam>(
          of_scale ? "scale" : "shift", shared, kLimit<TypeParam>,
          [&](void* y) {
            return cuda_on_cpu().modulated_norm_sums(&a, g.data(), moments.data(), of_scale ? nullptr : y,
                                                     of_scale ? y : nullptr, nullptr);
          },
          [&](void* y) {
            cpu().modulated_norm_sums(a, g.data(), moments_expected.data(), of_scale ? nullptr : y,
                                      of_scale ? y : nullptr, 0, s.samples * chunks(s.width, kColumns));
          });
  }
}

/// More rows than the warps of a block take in one run, columns beside a warp's.
TYPED_TEST(FusedOnCpu, SumsOfManyRows) {
  constexpr int64_t kSamplesOfIt = 2, kRowsOfOne = 1030, kWidth = 40, kAll = kSamplesOfIt * kRowsOfOne;
  const auto x = Buffer<TypeParam>::random(kAll * kWidth, 1), y = Buffer<TypeParam>::random(kAll * kWidth, 2),
             shared = Buffer<TypeParam>::random(kSamplesOfIt * kWidth, 3);
  const int64_t units = kSamplesOfIt * chunks(kWidth, kColumns);
  const GatedResidual gated{kDtype<TypeParam>, kAll, kWidth, kRowsOfOne, x.data(), shared.data(), y.data(), kWidth};
  compare<TypeParam>(
      "gate", kSamplesOfIt * kWidth, kLimit<TypeParam>,
      [&](void* to) { return cuda_on_cpu().gated_residual_sums(&gated, x.data(), to, nullptr); },
      [&](void* to) { cpu().gated_residual_sums(gated, x.data(), to, 0, units); });
  const ModulatedNorm norm{kDtype<TypeParam>, kAll,          kWidth,        kRowsOfOne, 1e-6,
                           x.data(),          shared.data(), shared.data(), kWidth,     kWidth};
  Buffer<float> moments(2 * kAll);
  Buffer<TypeParam> grad_x(kAll * kWidth);
  cpu().modulated_norm_grad(norm, y.data(), grad_x.data(), moments.data(), 0, kAll);
  for (const bool of_scale : {false, true}) {
    const auto places = [&](void* to) {
      return of_scale ? std::pair<void*, void*>(nullptr, to) : std::pair<void*, void*>(to, nullptr);
    };
    compare<TypeParam>(
        of_scale ? "scale" : "shift", kSamplesOfIt * kWidth, kLimit<TypeParam>,
        [&](void* to) {
          return cuda_on_cpu().modulated_norm_sums(&norm, y.data(), moments.data(), places(to).first, places(to).second,
                                                   nullptr);
        },
        [&](void* to) {
          cpu().modulated_norm_sums(norm, y.data(), moments.data(), places(to).first, places(to).second, 0, units);
        });
  }
}

TYPED_TEST(FusedOnCpu, NormRope) {
  for (const auto& [s, heads, odd] : {std::tuple{Samples{2, 35, 70}, 3, kNone},
                                      {{1, 1, 2}, 1, kNone},
                                      {{1, 9, 128}, 3, kNone},
                                      {{1, 0, 4}, 3, kNone},
                                      {{2, 3, 6}, 19, kNone},
                                      {{1, 2, 8}, 3, 1},
                                      {{1, 2, 8}, 3, 2},
                                      {{1, 2, 8}, 3, 3},
                                      {{1, 2, 8}, 3, 4},
                                      {{1, 2, 8}, 3, 5}}) {
    const int64_t tokens = s.samples * s.rows, step = heads * s.width, count = tokens * step;
    const auto x = Buffer<TypeParam>::random(count, 1, odd == 1),
               weight = Buffer<TypeParam>::random(s.width, 2, odd == 2),
               g = Buffer<TypeParam>::random(count, 3, odd == 3);
    const auto table = Buffer<float>::random(s.rows * s.width, 4, odd == 4);
    const NormRope a{kDtype<TypeParam>, s.samples,    s.rows,        heads, s.width,       1e-6, x.data(),
                     weight.data(),     table.data(), s.rows * step, step,  s.rows * step, step, 0};
    compare<TypeParam>(
        "forward", count, kLimit<TypeParam>, [&](void* y) { return cuda_on_cpu().norm_rope(&a, y, nullptr); },
        [&](void* y) { cpu().norm_rope(a, y, 0, tokens); }, odd == 5);
    compare<TypeParam>(
        "gradient", count, kLimit<TypeParam>,
        [&](void* y) { return cuda_on_cpu().norm_rope_grad(&a, g.data(), y, nullptr); },
        [&](void* y) { cpu().norm_rope_grad(a, g.data(), y, 0, tokens); }, odd == 5);
    const int64_t parts = chunks(tokens, kTokens);
    compare<float>(
        "weight", parts * s.width, 1e-5,
        [&](void* y) { return cuda_on_cpu().norm_rope_sums(&a, g.data(), y, nullptr); },
        [&](void* y) { cpu().norm_rope_sums(a, g.data(), y, 0, parts); });
  }
}

TYPED_TEST(FusedOnCpu, SwiGlu) {
  for (const Samples& s : kSamples)
    for (const int64_t before_width : {int64_t{0}, int64_t{5}}) {
      const int64_t rows = s.samples * s.rows, step = 2 * s.width + 3;
      const auto x = Buffer<TypeParam>::random(rows * step, 1), g = Buffer<TypeParam>::random(rows * s.width, 2),
                 before = Buffer<TypeParam>::random(rows * before_width, 3);
      SwiGlu a{
          kDtype<TypeParam>, rows, s.width, before_width, x.data(), before_width > 0 ? before.data() : nullptr, step,
          before_width};
      compare<TypeParam>(
          "forward", rows * (s.width + before_width), kLimit<TypeParam>,
          [&](void* y) { return cuda_on_cpu().swiglu(&a, y, nullptr); }, [&](void* y) { cpu().swiglu(a, y, 0, rows); });
      a.before_width = 0;
      compare<TypeParam>(
          "gradient", rows * 2 * s.width, kLimit<TypeParam>,
          [&](void* y) { return cuda_on_cpu().swiglu_grad(&a, g.data(), s.width, y, nullptr); },
          [&](void* y) { cpu().swiglu_grad(a, g.data(), s.width, y, 0, rows); });
    }
}

/// Gate, up and the rows before them as models have them: all in packs, or each in turn not.
TYPED_TEST(FusedOnCpu, SwiGluInPacks) {
  constexpr int64_t kRows = 3, kWidth = 24;
  for (int odd = 0; odd <= kOperands; ++odd)
    for (const int64_t before_width : {int64_t{0}, int64_t{16}, int64_t{17}})
      for (const int64_t apart : {int64_t{0}, int64_t{8}, int64_t{1}}) {
        const int64_t step = 2 * kWidth + apart, grad_step = kWidth + before_width;
        const auto x = Buffer<TypeParam>::random(kRows * step, 1, odd == 1),
                   before = Buffer<TypeParam>::random(kRows * before_width, 2, odd == 2),
                   g = Buffer<TypeParam>::random(kRows * grad_step, 3, odd == 3);
        const SwiGlu a{kDtype<TypeParam>, kRows, kWidth, before_width, x.data(), before.data(), step, before_width};
        compare<TypeParam>(
            "forward", kRows * (kWidth + before_width), kLimit<TypeParam>,
            [&](void* y) { return cuda_on_cpu().swiglu(&a, y, nullptr); },
            [&](void* y) { cpu().swiglu(a, y, 0, kRows); }, odd == 4);
        compare<TypeParam>(
            "gradient", kRows * 2 * kWidth, kLimit<TypeParam>,
            [&](void* y) { return cuda_on_cpu().swiglu_grad(&a, g.data(), grad_step, y, nullptr); },
            [&](void* y) { cpu().swiglu_grad(a, g.data(), grad_step, y, 0, kRows); }, odd == 4);
      }
}

/// A gate for all samples or one for each, at steps of its own.
TYPED_TEST(FusedOnCpu, GatedResidualInPacks) {
  constexpr int64_t kSamplesOfIt = 3, kRowsOfOne = 5;
  for (int odd = 0; odd <= kOperands; ++odd)
    for (const int64_t width : {24, 2056, 12})
      for (const int64_t step : {int64_t{0}, width + 8, width + 3}) {
        const int64_t rows = kSamplesOfIt * kRowsOfOne, count = rows * width;
        const auto x = Buffer<TypeParam>::random(count, 1, odd == 1), y = Buffer<TypeParam>::random(count, 2, odd == 2),
                   gate = Buffer<TypeParam>::random(kSamplesOfIt * (step + width), 3, odd == 3),
                   g = Buffer<TypeParam>::random(count, 4, odd == 4);
        const GatedResidual a{kDtype<TypeParam>, rows, width, kRowsOfOne, x.data(), gate.data(), y.data(), step};
        compare<TypeParam>(
            "forward", count, kLimit<TypeParam>,
            [&](void* to) { return cuda_on_cpu().gated_residual(&a, to, nullptr); },
            [&](void* to) { cpu().gated_residual(a, to, 0, rows); }, odd == 5);
        compare<TypeParam>(
            "gradient", count, kLimit<TypeParam>,
            [&](void* to) { return cuda_on_cpu().gated_residual_grad(&a, g.data(), to, nullptr); },
            [&](void* to) { cpu().gated_residual_grad(a, g.data(), to, 0, rows); }, odd == 5);
      }
}

TYPED_TEST(FusedOnCpu, GatedResidual) {
  for (const Samples& s : kSamples) {
    const int64_t rows = s.samples * s.rows, count = rows * s.width, shared = s.samples * s.width;
    const auto x = Buffer<TypeParam>::random(count, 1), y = Buffer<TypeParam>::random(count, 2),
               gate = Buffer<TypeParam>::random(shared, 3), g = Buffer<TypeParam>::random(count, 4);
    const GatedResidual a{kDtype<TypeParam>, rows,        s.width,  std::max<int64_t>(s.rows, 1),
                          x.data(),          gate.data(), y.data(), s.width};
    compare<TypeParam>(
        "forward", count, kLimit<TypeParam>, [&](void* to) { return cuda_on_cpu().gated_residual(&a, to, nullptr); },
        [&](void* to) { cpu().gated_residual(a, to, 0, rows); });
    compare<TypeParam>(
        "gradient", count, kLimit<TypeParam>,
        [&](void* to) { return cuda_on_cpu().gated_residual_grad(&a, g.data(), to, nullptr); },
        [&](void* to) { cpu().gated_residual_grad(a, g.data(), to, 0, rows); });
    if (rows == 0) continue;
    compare<TypeParam>(
        "gate", shared, kLimit<TypeParam>,
        [&](void* to) { return cuda_on_cpu().gated_residual_sums(&a, g.data(), to, nullptr); },
        [&](void* to) { cpu().gated_residual_sums(a, g.data(), to, 0, s.samples * chunks(s.width, kColumns)); });
  }
}

/// More elements than a block's threads; side by side and one below another; what is not finite.
TEST(Bf16PartsOnCpu, SumToTheNumber) {
  constexpr int kSlots = Bf16Parts::kSlots;
  for (const Samples& s : {Samples{1, 70, 300}, {1, 5, 3}, {1, 1, 1}, {1, 0, 8}})
    for (const bool beside : {false, true}) {
      const int64_t count = s.rows * s.width;
      auto x = Buffer<float>::random(count, 1);
      for (int64_t i = 0; i < count; ++i) x[i] = std::ldexp(x[i], static_cast<int>(i % 90) - 45);
      Buffer<Bfloat16> y(kSlots * count);
      Bf16Parts a{s.rows,    s.width, 0.75F, x.data(), beside ? s.width : count, beside ? kSlots * s.width : s.width,
                  {0, 1, 2}, y.data()};
      ASSERT_EQ(cuda_on_cpu().bf16_parts(&a, nullptr), 0);
      EXPECT_TRUE(y.intact());
      const auto part = [&](int slot, int64_t i) {
        return to_float(y[slot * a.slot_step + i / s.width * a.row_step + i % s.width]);
      };
      for (int64_t i = 0; i < count; ++i) {
        Bfloat16 first;
        round_to(0.75F * x[i], &first);
        EXPECT_EQ(part(0, i), to_float(first)) << i;
        EXPECT_FLOAT_EQ(part(0, i) + (part(1, i) + part(2, i)), 0.75F * x[i]) << i;
      }
      std::copy_n(std::array{1, 0, 0}.data(), kSlots, a.order);
      ASSERT_EQ(cuda_on_cpu().bf16_parts(&a, nullptr), 0);
      for (int64_t i = 0; i < count; ++i) EXPECT_EQ(part(2, i), part(1, i));
    }
}

TEST(Bf16PartsOnCpu, OfWhatIsNotFiniteAreOneAndZeros) {
  Buffer<float> x(4);
  x[0] = std::numeric_limits<float>::infinity(), x[1] = -x[0], x[2] = std::nanf(""), x[3] = 1;
  Buffer<Bfloat16> y(12);
  const Bf16Parts a{1, 4, 1, x.data(), 4, 4, {0, 1, 2}, y.data()};
  ASSERT_EQ(cuda_on_cpu().bf16_parts(&a, nullptr), 0);
  EXPECT_EQ(to_float(y[0]), x[0]);
  EXPECT_EQ(to_float(y[1]), x[1]);
  EXPECT_TRUE(std::isnan(to_float(y[2])));
  for (int i = 4; i < 12; ++i) EXPECT_EQ(to_float(y[i]), 0) << i;
}

}  // namespace
}  // namespace trainer::kernels
