/// @file The kernels without the tensors around them: every instruction set of this processor computes the same, and
/// the library of CUDA kernels is there and whole. No GPU is needed or used.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <kernels/cpu.hpp>
#include <kernels/cuda.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace trainer::kernels {
namespace {

/// Numbers of every size and sign, the same every time.
std::vector<float> numbers(std::size_t count, unsigned seed) {
  std::vector<float> list(count);
  unsigned state = seed;
  for (float& number : list) {
    state = state * 1664525U + 1013904223U;
    number = static_cast<float>(state >> 8) / (1U << 23) - 1.0F;
  }
  return list;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& expected, const char* what) {
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 2e-6) << what << " at " << i;
}

constexpr int64_t kRows = 5, kWidth = 54;

void multiply(Dtype, int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, bool add, const void* a,
              const void* b, float* c) {
  for (int64_t row = 0; row < m; ++row)
    for (int64_t column = 0; column < n; ++column) {
      float sum = add ? c[row * ldc + column] : 0;
      for (int64_t i = 0; i < k; ++i)
        sum += static_cast<const float*>(a)[row * lda + i] * static_cast<const float*>(b)[i * ldb + column];
      c[row * ldc + column] = sum;
    }
}

/// Output, sums and gradients of one head.
void add_attention(const CpuKernels& cpu, std::vector<std::vector<float>>& all) {
  constexpr int64_t kTokens = 70, kSize = kTokens * kWidth;  // more than a tile of queries
  const auto x = numbers(kSize, 6), y = numbers(kSize, 7), z = numbers(kSize, 8), g = numbers(kSize, 9);
  const auto in = [](const std::vector<float>& data) { return HeadsIn{data.data(), kSize, kWidth, 0}; };
  const auto out = [](std::vector<float>& data) { return HeadsOut{data.data(), kSize, kWidth, 0}; };
  const Attention a{Dtype::f32, false, 1, 1, kTokens, kTokens, kWidth, 0.2, in(x), in(y), in(z), &multiply};
  std::vector<std::vector<float>> made(5, std::vector<float>(kSize));
  made[1].resize(kTokens);
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::max(attention_bytes(a), attention_grad_bytes(a))));
  const HeadsOut sums{made[1].data(), kTokens, 1, 0};
  cpu.attention(a, out(made[0]), sums, buffer.data(), 0, attention_units(a));
  const AttentionGrad grad{in(g),        in(made[0]),  {made[1].data(), kTokens, 1, 0},
                           out(made[2]), out(made[3]), out(made[4])};
  cpu.attention_grad(a, grad, buffer.data(), 0, 1);
  all.insert(all.end(), made.begin(), made.end());
}

/// What each kernel makes of the same numbers.
std::vector<std::vector<float>> results(const CpuKernels& cpu) {
  const auto x = numbers(kRows * kWidth, 1), shift = numbers(kWidth, 2), scale = numbers(kWidth, 3),
             g = numbers(kRows * kWidth, 4);
  std::vector<std::vector<float>> all;
  const auto make = [&](std::size_t count) { return all.emplace_back(count).data(); };
  const ModulatedNorm norm{Dtype::f32, kRows, kWidth, kRows, 1e-6, x.data(), shift.data(), scale.data(), 0, 0};
  cpu.modulated_norm(norm, make(kRows * kWidth), 0, kRows);
  std::vector<float> moments(kRows * 2), grad_x(kRows * kWidth), grad_shift(kWidth), grad_scale(kWidth);
  cpu.modulated_norm_grad(norm, g.data(), grad_x.data(), moments.data(), 0, kRows);
  cpu.modulated_norm_sums(norm, g.data(), moments.data(), grad_shift.data(), grad_scale.data(), 0, 1);
  all.insert(all.end(), {grad_x, moments, grad_shift, grad_scale});
  const NormRope rope{Dtype::f32, 1, kRows, 1, kWidth, 1e-6, x.data(), shift.data(), g.data(), 0, kWidth, 0, kWidth, 0};
  cpu.norm_rope(rope, make(kRows * kWidth), 0, kRows);
  cpu.norm_rope_grad(rope, g.data(), make(kRows * kWidth), 0, kRows);
  cpu.norm_rope_sums(rope, g.data(), make(kWidth), 0, 1);
  const SwiGlu gate{Dtype::f32, kRows, kWidth / 2, 0, x.data(), nullptr, kWidth, 0};
  cpu.swiglu(gate, make(kRows * kWidth / 2), 0, kRows);
  cpu.swiglu_grad(gate, g.data(), kWidth, make(kRows * kWidth), 0, kRows);
  const GatedResidual residual{Dtype::f32, kRows, kWidth, kRows, x.data(), scale.data(), g.data(), 0};
  cpu.gated_residual(residual, make(kRows * kWidth), 0, kRows);
  cpu.gated_residual_grad(residual, x.data(), make(kRows * kWidth), 0, kRows);
  cpu.gated_residual_sums(residual, x.data(), make(kWidth), 0, 1);
  add_attention(cpu, all);
  return all;
}

TEST(CpuKernels, EveryInstructionSetComputesTheSame) {
  ASSERT_FALSE(cpu_levels().empty());
  EXPECT_STREQ(cpu_levels().front()->level, "baseline");
  const auto expected = results(*cpu_levels().front());
  for (const CpuKernels* level : cpu_levels()) {
    const auto got = results(*level);
    for (std::size_t i = 0; i < got.size(); ++i) expect_near(got[i], expected[i], level->level);
  }
}

TEST(CpuKernels, TheBestLevelIsUsedUnlessOneIsNamed) {
  const char* const named = std::getenv("TRAINER_CPU_LEVEL");
  EXPECT_STREQ(cpu_kernels().level, named == nullptr || *named == '\0' ? cpu_levels().back()->level : named);
  EXPECT_EQ(&cpu_level(""), cpu_levels().back());
  for (const CpuKernels* level : cpu_levels()) EXPECT_EQ(&cpu_level(level->level), level);
  try {
    cpu_level("avx2");
    FAIL() << "a level that does not exist is used";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("\"avx2\""), std::string::npos) << error.what();
    for (const CpuKernels* level : cpu_levels())
      EXPECT_NE(std::string(error.what()).find(level->level), std::string::npos) << error.what();
  }
}

TEST(CudaKernels, TheLibraryIsBuiltAndWhole) {
  const char* path = std::getenv("TRAINER_TEST_CUDA_KERNELS");
  const bool built = path != nullptr && *path != '\0';
  if (!built && std::getenv("TRAINER_NEED_NVCC") != nullptr)
    FAIL() << "built without nvcc; tools/setup --nvcc fetches it";
  if (!built) GTEST_SKIP() << "built without nvcc; tools/setup --nvcc fetches it";
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto table_of = reinterpret_cast<CudaKernelsOf>(dlsym(library, kCudaKernelsSymbol));
  ASSERT_NE(table_of, nullptr) << "it exports " << kCudaKernelsSymbol;
  EXPECT_EQ(table_of(kArgumentsLayout + 1), nullptr) << "other layouts are refused";
  const CudaKernels* const table = table_of(kArgumentsLayout);
  ASSERT_NE(table, nullptr);
  std::vector<const void*> entries(sizeof(CudaKernels) / sizeof(void*));
  static_assert(sizeof(CudaKernels) % sizeof(void*) == 0);
  std::memcpy(entries.data(), table, sizeof(CudaKernels));
  for (const void* entry : entries) EXPECT_NE(entry, nullptr);
  // Refused before anything is launched.
  const SwiGlu doubles{Dtype::f64, 1, 1, 0, nullptr, nullptr, 2, 0},
      nothing{Dtype::f32, 0, 1, 0, nullptr, nullptr, 2, 0};
  EXPECT_NE(table->swiglu(&doubles, nullptr, nullptr), 0) << "fp64 is not computed";
  EXPECT_EQ(table->swiglu(&nothing, nullptr, nullptr), 0) << "nothing to do is no error";
  const QuantizeRows no_code{Number::f32, Number::e5m2, 1, 1, nullptr, 1, nullptr, nullptr, nullptr},
      no_numbers{Number::int8, Number::e4m3, 1, 1, nullptr, 1, nullptr, nullptr, nullptr},
      no_rows{Number::f32, Number::e4m3, 0, 1, nullptr, 1, nullptr, nullptr, nullptr};
  EXPECT_NE(table->quantize_rows(&no_code, nullptr), 0);
  EXPECT_NE(table->quantize_rows(&no_numbers, nullptr), 0);
  EXPECT_EQ(table->quantize_rows(&no_rows, nullptr), 0);
  const ScaleSums no_sums{Number::bf16, Number::bf16, 1, 1, nullptr, nullptr, nullptr, nullptr};
  EXPECT_NE(table->scale_sums(&no_sums, nullptr), 0);
  const ExpandCodes into_codes{Number::e4m3, Number::int8, 1, 1, 1, nullptr, nullptr, 1, nullptr};
  EXPECT_NE(table->expand_codes(&into_codes, nullptr), 0);
  const TransposeBytes no_bytes{3, 0, nullptr, nullptr};
  EXPECT_EQ(table->transpose_bytes(&no_bytes, nullptr), 0);
}

}  // namespace
}  // namespace trainer::kernels
