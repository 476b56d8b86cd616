// Products by panels at every level against fp64, and that their bits depend on nothing but row, column and terms.
#include <gtest/gtest.h>
#include <kernels/cpu.hpp>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "products.hpp"

namespace trainer::kernels {
namespace {

TEST(Product, IsThatOfFp64AtEveryLevelAndInEveryLayout) {
  const std::vector<std::vector<Dtype>> types{
      {Dtype::f32, Dtype::f32, Dtype::f32},   {Dtype::bf16, Dtype::bf16, Dtype::bf16},
      {Dtype::bf16, Dtype::f32, Dtype::f32},  {Dtype::f32, Dtype::f32, Dtype::bf16},
      {Dtype::f32, Dtype::bf16, Dtype::bf16}, {Dtype::f64, Dtype::f64, Dtype::f64}};
  for (const CpuKernels* cpu : cpu_levels())
    for (const Case& size : kCases)
      for (unsigned layout = 0; layout < 8; ++layout)
        for (const auto& type : types) {
          const Numbers a(size.m, size.k, type[0], (layout & 1) != 0, 1),
              b(size.k, size.n, type[1], (layout & 2) != 0, 2);
          const Numbers base(size.m, size.n, type[2], false, 3);
          const bool adds = (layout & 4) != 0;
          const Product p{
              1,       size.m,  size.n, size.k, a.matrix(), b.matrix(), adds ? 0.5 : 1, adds ? base.matrix() : Matrix{},
              type[2], nullptr, 0,      0,      0,          0};
          const Bytes c = computed(*cpu, p);
          const double bits = type[2] == Dtype::f64 ? 1e-15 : type[2] == Dtype::f32 ? 1e-7 : 4e-3;
          for (int64_t row = 0; row < size.m; row += 1 + size.m / 9)
            for (int64_t column = 0; column < size.n; column += 1 + size.n / 9) {
              double sum = 0, sizes = 0;
              for (int64_t k = 0; k < size.k; ++k) {
                sum += a.at(row, k) * b.at(k, column);
                sizes += std::abs(a.at(row, k) * b.at(k, column));
              }
              if (adds) sum = 0.5 * sum + base.at(row, column);
              ASSERT_NEAR(number(c, type[2], row * size.n + column), sum,
                          bits * std::abs(sum) + (type[2] == Dtype::f64 ? 1e-15 : 1e-6) * (sizes + 1))
                  << cpu->level << " " << size.m << " x " << size.k << " x " << size.n << ", layout " << layout;
            }
        }
}

/// What is multiplied by `factor`, and what is added: nothing, a matrix, or one row to all.
struct Ending {
  double factor;
  bool adds;
  bool one_row;
};
const std::vector<Ending> kEndings{{1, false, false}, {0.7, false, false}, {0.7, true, false}, {0.7, true, true}};

TEST(Product, HasTheSameBitsHoweverItIsCutAndAtEveryLevelWithFusedMultiplyAdds) {
  const CpuKernels* before = nullptr;
  for (const CpuKernels* cpu : cpu_levels()) {
    for (const Case& size : kCases)
      for (const Dtype type : {Dtype::f32, Dtype::bf16}) {
        const Numbers a(size.m, size.k, type, false, 1), b(size.k, size.n, type, true, 2),
            base(size.m, size.n, type, false, 3);
        for (const Ending& ending : kEndings) {
          Product p{1, size.m, size.n, size.k, a.matrix(), b.matrix(), ending.factor, {}, type, nullptr, 0, 0, 0, 0};
          if (ending.adds) p.base = base.matrix();
          if (ending.one_row) p.base.row_step = 0;
          const Bytes c = computed(*cpu, p);
          for (const int64_t threads : {2, 7, 64}) EXPECT_EQ(computed(*cpu, p, threads), c) << threads << " threads";
          if (before != nullptr) {
            EXPECT_EQ(computed(*before, p), c) << before->level << " and " << cpu->level << ": " << size.m << " x "
                                               << size.k << " x " << size.n << ", " << ending.factor
                                               << (ending.one_row ? " with a row"
                                                   : ending.adds  ? " with a matrix"
                                                                  : "");
          }
        }
      }
    if (std::string(cpu->level) != "baseline") before = cpu;
  }
}

/// A row of 37 numbers (whole vectors and a rest at every level): NaN of several bits, infinities, and those that a
/// bf16's largest number borders on.
std::vector<float> extremes() {
  std::vector<float> row;
  for (std::size_t i = 0; row.size() < 37; ++i) {
    const uint32_t words[] = {0x7fffffff, 0xffffffff, 0x7fc00000, 0x7fffc000, 0x7f800000, 0xff800000, 0x7f7fffff,
                              0xff7fffff, 0x7f7f8000, 0x7f7f7fff, 0x7f7f0000, 0x3f800000, 0x3f808000};
    float x = 0;
    std::memcpy(&x, &words[i % std::size(words)], sizeof x);
    row.push_back(x);
  }
  return row;
}

/// Expects a product of one row, which is those numbers or what they round to.
void expect_extremes(const CpuKernels& cpu, const Product& p, const std::vector<float>& expected, const char* what) {
  const Bytes c = computed(cpu, p);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double x = expected[i], got = number(c, p.type, static_cast<int64_t>(i));
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(got)) << cpu.level << ", " << what << " " << i << ": " << got;
    } else {
      EXPECT_EQ(got, p.type == Dtype::bf16 ? widened(rounded(expected[i])) : x)
          << cpu.level << ", " << what << " " << i;
    }
  }
}

TEST(Product, NanAndInfinityAndTheLargestNumbersStayWhatTheyAre) {
  const std::vector<float> row = extremes();
  const auto n = static_cast<int64_t>(row.size());
  std::vector<uint16_t> stored;  // as bf16: NaN stays one
  for (const float x : row) stored.push_back(std::isnan(x) ? 0x7fff : rounded(x));
  std::vector<float> read;
  for (const uint16_t x : stored) read.push_back(widened(x));
  const float one = 1;
  const std::vector<float> zeros(row.size());
  const Matrix ones{&one, Dtype::f32, 1, 1, 0}, wide{row.data(), Dtype::f32, n, 1, 0},
      narrow{stored.data(), Dtype::bf16, n, 1, 0}, nothing{zeros.data(), Dtype::f32, n, 1, 0};
  for (const CpuKernels* cpu : cpu_levels())
    for (const Dtype type : {Dtype::f32, Dtype::bf16}) {
      Product p{1, 1, n, 1, ones, wide, 1, {}, type, nullptr, 0, 0, 0, 0};
      expect_extremes(*cpu, p, row, "to the right");
      p.b = narrow;
      expect_extremes(*cpu, p, read, "of bf16");
      p.b = nothing;
      p.base = type == Dtype::f32 ? wide : narrow;
      expect_extremes(*cpu, p, type == Dtype::f32 ? row : read, "added");
    }
}

TEST(Product, OfInfinitiesIsThatOfFp32) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> left{infinity, 1, 3e38F}, right{0, 1, 1, 1, 2, 1, -1, -infinity, 10};  // [3, 3] by rows
  const std::vector<float> expected{std::nanf(""), std::nanf(""), infinity};
  for (const CpuKernels* cpu : cpu_levels())
    for (const Dtype type : {Dtype::f32, Dtype::bf16})
      expect_extremes(*cpu,
                      {1,
                       1,
                       3,
                       3,
                       {left.data(), Dtype::f32, 3, 1, 0},
                       {right.data(), Dtype::f32, 3, 1, 0},
                       1,
                       {},
                       type,
                       nullptr,
                       0,
                       0,
                       0,
                       0},
                      expected, "column");
}

TEST(Product, OfARowDoesNotDependOnTheOthers) {
  for (const CpuKernels* cpu : cpu_levels())
    for (const Dtype type : {Dtype::f32, Dtype::bf16}) {
      const Case size{41, 37, 700};
      const Numbers a(size.m, size.k, type, false, 1), b(size.k, size.n, type, true, 2);
      Product p{1, size.m, size.n, size.k, a.matrix(), b.matrix(), 1, {}, type, nullptr, 0, 0, 0, 0};
      const Bytes whole = computed(*cpu, p);
      p.m = 1;
      for (int64_t row = 0; row < size.m; ++row) {
        const Bytes alone = computed(*cpu, p);
        EXPECT_EQ(std::memcmp(alone.data(), whole.data() + row * size.n * size_of(type), alone.size()), 0) << row;
        p.a.data = static_cast<const char*>(p.a.data) + size.k * size_of(type);
      }
    }
}

TEST(Product, AddsInPlaceARowForAllAndBatches) {
  const Case size{9, 45, 50};
  for (const CpuKernels* cpu : cpu_levels())
    for (const Dtype type : {Dtype::f32, Dtype::bf16}) {
      const Numbers a(3 * size.m, size.k, type, false, 1), b(size.k, size.n, type, false, 2);
      const Numbers row(1, size.n, type, false, 3);
      Product p{3, size.m, size.n, size.k, a.matrix(), b.matrix(), 1, row.matrix(), type, nullptr, 0, 0, 0, 0};
      p.base.row_step = 0;
      p.a.batch_step = size.m * size.k;
      const Bytes batches = computed(*cpu, p);
      p.batches = 1;
      p.m *= 3;
      EXPECT_EQ(computed(*cpu, p), batches) << cpu->level;

      Bytes c = batches;
      p.base = {c.data(), type, size.n, 1, 0};
      const Bytes apart = computed(*cpu, p);
      p.c = c.data();
      p.c_step = size.n;
      cut(p, 4);
      std::vector<unsigned char> memory(static_cast<std::size_t>(product_bytes(p)) + 64);
      cpu->product(p, memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64, 0, product_units(p));
      EXPECT_EQ(c, apart) << cpu->level;
      EXPECT_NE(c, batches) << cpu->level;
    }
}

/// Pictures [samples, height, width, channels] of which patches are multiplied.
struct Convolution {
  int64_t channels, kernel, step, edge, out;
  static constexpr int64_t kSamples = 2, kHeight = 9, kWidth = 14;
  [[nodiscard]] Patches patches() const {
    const auto count = [&](int64_t size) { return (size + 2 * edge - kernel) / step + 1; };
    return {kHeight,
            kWidth,
            channels,
            kernel,
            kernel,
            step,
            edge,
            edge,
            count(kHeight),
            count(kWidth),
            kHeight * kWidth * channels,
            kWidth * channels};
  }
};

/// The sum of fp64 for a row of the result, and that of its terms' sizes.
struct Exact {
  double sum = 0, sizes = 0;
};
Exact convolved(const Convolution& c, const Numbers& pictures, const Numbers& weights, int64_t row, int64_t column) {
  const Patches of = c.patches();
  const int64_t sample = row / of.out_width / of.out_height;
  const int64_t top = row / of.out_width % of.out_height * c.step - c.edge, left = row % of.out_width * c.step - c.edge;
  Exact exact;
  for (int64_t term = 0; term < c.kernel * c.kernel * c.channels; ++term) {
    const int64_t pixel = term / c.channels, y = top + pixel / c.kernel, x = left + pixel % c.kernel;
    if (y < 0 || y >= of.height || x < 0 || x >= of.width) continue;
    const double product =
        pictures.at((sample * of.height + y) * of.width + x, term % c.channels) * weights.at(term, column);
    exact.sum += product;
    exact.sizes += std::abs(product);
  }
  return exact;
}

TEST(Product, OfPatchesIsTheConvolutionOfFp64AtEveryLevel) {
  // The last have more terms than are summed at once, which end in the midst of a pixel's channels.
  const std::vector<Convolution> cases{{3, 3, 1, 1, 37},  {3, 3, 2, 0, 20},  {20, 3, 2, 1, 5}, {3, 1, 1, 0, 16},
                                       {20, 5, 1, 0, 33}, {40, 3, 1, 1, 70}, {40, 3, 2, 0, 7}};
  const CpuKernels* before = nullptr;
  for (const CpuKernels* cpu : cpu_levels()) {
    for (const Convolution& of : cases)
      for (const Dtype type : {Dtype::f32, Dtype::bf16}) {
        const Patches patches = of.patches();
        const int64_t m = of.kSamples * patches.out_height * patches.out_width, k = of.kernel * of.kernel * of.channels;
        const Numbers pictures(of.kSamples * of.kHeight * of.kWidth, of.channels, type, false, 1),
            weights(k, of.out, type, true, 2), bias(1, of.out, type, false, 3);
        Product p{1, m, of.out, k, pictures.matrix(), weights.matrix(), 1, bias.matrix(), type, nullptr,
                  0, 0, 0,      0, &patches};
        p.base.row_step = 0;
        const Bytes c = computed(*cpu, p);
        const double bits = type == Dtype::f32 ? 1e-7 : 4e-3;
        for (int64_t row = 0; row < m; ++row)
          for (int64_t column = 0; column < of.out; column += 1 + of.out / 5) {
            const Exact exact = convolved(of, pictures, weights, row, column);
            const double sum = exact.sum + bias.at(0, column);
            ASSERT_NEAR(number(c, type, row * of.out + column), sum, bits * std::abs(sum) + 1e-6 * (exact.sizes + 1))
                << cpu->level << ", " << of.channels << " channels, step " << of.step << ", edge " << of.edge
                << ", row " << row;
          }
        EXPECT_EQ(computed(*cpu, p, 7), c) << cpu->level;
        if (before != nullptr) {
          EXPECT_EQ(computed(*before, p), c) << before->level << " and " << cpu->level;
        }
      }
    if (std::string(cpu->level) != "baseline") before = cpu;
  }
}

}  // namespace
}  // namespace trainer::kernels
