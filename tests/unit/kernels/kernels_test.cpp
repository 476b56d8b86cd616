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
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "bf16.hpp"

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

template <typename T>
constexpr Dtype kDtype = std::is_same_v<T, double> ? Dtype::f64
                         : sizeof(T) == 2          ? Dtype::bf16
                                                   : Dtype::f32;

/// Numbers as memory holds them; bf16 as its bits.
template <typename T>
std::vector<T> stored(const std::vector<float>& list) {
  std::vector<T> memory;
  for (const float x : list) {
    if constexpr (sizeof(T) == 2)
      memory.push_back(rounded(x));
    else
      memory.push_back(x);
  }
  return memory;
}
std::vector<float> read(const std::vector<float>& memory) { return memory; }
std::vector<float> read(const std::vector<uint16_t>& memory) {
  std::vector<float> list;
  for (const uint16_t x : memory) list.push_back(widened(x));
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

/// One head: more than a tile of queries, and of keys as well where there are many.
struct Head {
  int64_t keys;
  bool masked, causal;
  static constexpr int64_t kQueries = 70;
  std::vector<float> q = numbers(kQueries * kWidth, 6), k = numbers(keys * kWidth, 7), v = numbers(keys * kWidth, 8),
                     grad = numbers(kQueries * kWidth, 9), mask = numbers(kQueries * keys, 10);
};

/// Output and sums, and the gradients of q, k and v where nothing is masked.
template <typename T>
std::vector<std::vector<float>> attended(const CpuKernels& cpu, const Head& head) {
  const auto in = [](const auto& data) { return HeadsIn{data.data(), 0, kWidth, 0}; };
  const auto out = [](auto& data) { return HeadsOut{data.data(), 0, kWidth, 0}; };
  const auto q = stored<T>(head.q), k = stored<T>(head.k), v = stored<T>(head.v), g = stored<T>(head.grad),
             mask = stored<T>(head.mask);
  Attention a{kDtype<T>, sizeof(T) == 2, 1, 1, Head::kQueries, head.keys, kWidth, 0.2, in(q), in(k), in(v), &multiply};
  if (head.masked) a.mask = {mask.data(), 0, head.keys, 0};
  a.causal = head.causal;
  std::vector<T> y(q.size()), grad_q(q.size()), grad_k(k.size()), grad_v(v.size());
  std::vector<float> sums(Head::kQueries);
  std::vector<std::byte> memory(static_cast<std::size_t>(std::max(attention_bytes(a), attention_grad_bytes(a))) + 64);
  std::byte* const buffer = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  cpu.attention(a, out(y), {sums.data(), 0, 1, 0}, buffer, 0, attention_units(a));
  if (head.masked || head.causal) return {read(y), sums};
  const AttentionGrad grad{in(g), in(y), {sums.data(), 0, 1, 0}, out(grad_q), out(grad_k), out(grad_v)};
  cpu.attention_grad(a, grad, buffer, 0, 1);
  return {read(y), sums, read(grad_q), read(grad_k), read(grad_v)};
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
  const auto head = attended<float>(cpu, {Head::kQueries, false, false});
  all.insert(all.end(), head.begin(), head.end());
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

/// The output in fp64.
std::vector<double> exact_output(const Head& head) {
  std::vector<double> y(Head::kQueries * kWidth);
  for (int64_t row = 0; row < Head::kQueries; ++row) {
    std::vector<double> weights(static_cast<std::size_t>(head.causal ? row + 1 : head.keys));
    double sum = 0;
    for (std::size_t key = 0; key < weights.size(); ++key) {
      double score = 0;
      for (std::size_t i = 0; i < kWidth; ++i) score += 0.2 * head.q[row * kWidth + i] * head.k[key * kWidth + i];
      sum += weights[key] = std::exp(score + (head.masked ? head.mask[row * head.keys + key] : 0));
    }
    for (std::size_t key = 0; key < weights.size(); ++key)
      for (std::size_t i = 0; i < kWidth; ++i) y[row * kWidth + i] += weights[key] / sum * head.v[key * kWidth + i];
  }
  return y;
}

TEST(CpuKernels, AttentionOfBf16ThatIsWidenedIsRoundedOnce) {
  for (Head head : {Head{70, false, false}, Head{530, false, false}, Head{530, true, false}, Head{530, false, true}}) {
    for (auto* list : {&head.q, &head.k, &head.v, &head.grad, &head.mask}) *list = read(stored<uint16_t>(*list));
    for (std::size_t i = 0; i < head.mask.size(); i += 3) head.mask[i] = -std::numeric_limits<float>::infinity();
    const std::vector<double> exact = exact_output(head);
    for (const CpuKernels* cpu : cpu_levels()) {
      const auto wide = attended<float>(*cpu, head), half = attended<uint16_t>(*cpu, head);
      for (std::size_t i = 0; i < exact.size(); ++i) {
        ASSERT_NEAR(wide[0][i], exact[i], 2e-6) << cpu->level << " at " << i;
        ASSERT_EQ(half[0][i], widened(rounded(wide[0][i]))) << cpu->level << " at " << i;
      }
      EXPECT_EQ(half[1], wide[1]) << cpu->level;
      // The backward reads the rounded output.
      for (std::size_t part = 2; part < half.size(); ++part)
        for (std::size_t i = 0; i < half[part].size(); ++i)
          ASSERT_NEAR(half[part][i], wide[part][i], std::abs(wide[part][i]) / 256 + 1e-3) << cpu->level << " " << part;
    }
  }
}

/// Sums of columns that are asked for in ranges of at most so many units: shift's, scale's and a gate's.
template <typename T>
std::vector<std::vector<T>> column_sums(const CpuKernels& cpu, int64_t range) {
  constexpr int64_t kSamples = 2, kRowsEach = 70, kWide = 1100, kAll = kSamples * kRowsEach;
  using Scalar = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const auto x = stored<T>(numbers(kAll * kWide, 1)), g = stored<T>(numbers(kAll * kWide, 2)),
             rows = stored<T>(numbers(kSamples * kWide, 3));
  const auto moments = stored<Scalar>(numbers(kAll * 2, 4));
  const ModulatedNorm norm{kDtype<T>, kAll, kWide, kRowsEach, 1e-6, x.data(), rows.data(), rows.data(), kWide, kWide};
  const GatedResidual residual{kDtype<T>, kAll, kWide, kRowsEach, nullptr, rows.data(), x.data(), kWide};
  std::vector<std::vector<T>> sums(3, std::vector<T>(kSamples * kWide));
  const int64_t units = kSamples * ((kWide + kColumns - 1) / kColumns);
  for (int64_t begin = 0; begin < units; begin += range) {
    const int64_t end = std::min(units, begin + range);
    cpu.modulated_norm_sums(norm, g.data(), moments.data(), sums[0].data(), sums[1].data(), begin, end);
    cpu.gated_residual_sums(residual, g.data(), sums[2].data(), begin, end);
  }
  return sums;
}

TEST(CpuKernels, SumsOfColumnsDoNotDependOnTheRangeTheyAreIn) {
  for (const CpuKernels* cpu : cpu_levels()) {
    const auto expect_same = [&]<typename T>(T) {
      const auto whole = column_sums<T>(*cpu, 1000);
      for (const int64_t range : {1, 3, 8, 11})
        EXPECT_EQ(column_sums<T>(*cpu, range), whole) << cpu->level << " " << range;
    };
    expect_same(float{});
    expect_same(uint16_t{});
    expect_same(double{});
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
