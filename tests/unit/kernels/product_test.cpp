// Products by panels at every level against fp64, and that their bits depend on nothing but row, column and terms.
#include <gtest/gtest.h>
#include <kernels/cpu.hpp>
#include <kernels/eight_bits_numbers.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace trainer::kernels {
namespace {

float widened(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float x = 0;
  std::memcpy(&x, &word, sizeof x);
  return x;
}
uint16_t rounded(float x) {
  uint32_t word = 0;
  std::memcpy(&word, &x, sizeof x);
  return static_cast<uint16_t>((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

/// Numbers [rows, columns] as they are stored, by rows or by columns, and what they are.
class Numbers {
 public:
  Numbers(int64_t rows, int64_t columns, Dtype dtype, bool turned, unsigned seed)
      : rows_(rows), columns_(columns), dtype_(dtype), turned_(turned), wide_(rows * columns) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    for (double& x : wide_) {
      x = static_cast<float>(normal(random));
      if (dtype == Dtype::bf16) x = widened(rounded(static_cast<float>(x)));
      f32_.push_back(static_cast<float>(x));
      bf16_.push_back(rounded(f32_.back()));
    }
  }
  [[nodiscard]] Matrix matrix() const {
    const void* const data = dtype_ == Dtype::f64   ? static_cast<const void*>(wide_.data())
                             : dtype_ == Dtype::f32 ? static_cast<const void*>(f32_.data())
                                                    : bf16_.data();
    return {data, dtype_, turned_ ? 1 : columns_, turned_ ? rows_ : 1, 0};
  }
  [[nodiscard]] double at(int64_t row, int64_t column) const {
    return wide_.at(static_cast<std::size_t>(turned_ ? column * rows_ + row : row * columns_ + column));
  }

 private:
  int64_t rows_, columns_;
  Dtype dtype_;
  bool turned_;
  std::vector<double> wide_;
  std::vector<float> f32_;
  std::vector<uint16_t> bf16_;
};

using Bytes = std::vector<unsigned char>;
int64_t size_of(Dtype dtype) { return dtype == Dtype::f64 ? 8 : dtype == Dtype::f32 ? 4 : 2; }
double number(const Bytes& bytes, Dtype dtype, int64_t i) {
  const unsigned char* const at = bytes.data() + i * size_of(dtype);
  double wide = 0;
  float narrow = 0;
  uint16_t half = 0;
  if (dtype == Dtype::f64) return std::memcpy(&wide, at, 8), wide;
  if (dtype == Dtype::f32) return std::memcpy(&narrow, at, 4), narrow;
  return std::memcpy(&half, at, 2), widened(half);
}

/// c of that product, computed in units one after the other.
Bytes computed(const CpuKernels& cpu, Product p, int64_t threads = 1) {
  Bytes c(static_cast<std::size_t>(p.batches * p.m * p.n * size_of(p.type)), 0xff);
  p.c = c.data();
  p.c_step = p.n;
  p.c_batch_step = p.m * p.n;
  cut(p, threads);
  std::vector<unsigned char> memory(static_cast<std::size_t>(product_bytes(p)) + 64, 0xff);
  auto* const buffer = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  for (int64_t unit = product_units(p); unit-- > 0;) cpu.product(p, buffer, unit, unit + 1);
  return c;
}

struct Case {
  int64_t m, n, k;
};
const std::vector<Case> kCases{{1, 1, 1},    {1, 33, 257}, {7, 16, 16},   {13, 95, 31},   {85, 70, 300}, {16, 200, 513},
                               {100, 16, 70}, {5, 5, 0},    {600, 40, 20}, {30, 1100, 16}, {14, 32, 256}, {29, 7, 800}};

TEST(Product, IsThatOfFp64AtEveryLevelAndInEveryLayout) {
  const std::vector<std::vector<Dtype>> types{{Dtype::f32, Dtype::f32, Dtype::f32},   {Dtype::bf16, Dtype::bf16, Dtype::bf16},
                                              {Dtype::bf16, Dtype::f32, Dtype::f32},  {Dtype::f32, Dtype::f32, Dtype::bf16},
                                              {Dtype::f32, Dtype::bf16, Dtype::bf16}, {Dtype::f64, Dtype::f64, Dtype::f64}};
  for (const CpuKernels* cpu : cpu_levels())
    for (const Case& size : kCases)
      for (unsigned layout = 0; layout < 8; ++layout)
        for (const auto& type : types) {
          const Numbers a(size.m, size.k, type[0], (layout & 1) != 0, 1), b(size.k, size.n, type[1], (layout & 2) != 0, 2);
          const Numbers base(size.m, size.n, type[2], false, 3);
          const bool adds = (layout & 4) != 0;
          const Product p{1, size.m, size.n, size.k, a.matrix(), b.matrix(), adds ? 0.5 : 1,
                          adds ? base.matrix() : Matrix{}, type[2], nullptr, 0, 0, 0, 0};
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

TEST(Product, HasTheSameBitsHoweverItIsCutAndAtEveryLevelWithFusedMultiplyAdds) {
  const CpuKernels* before = nullptr;
  for (const CpuKernels* cpu : cpu_levels()) {
    for (const Case& size : kCases)
      for (const Dtype type : {Dtype::f32, Dtype::bf16}) {
        const Numbers a(size.m, size.k, type, false, 1), b(size.k, size.n, type, true, 2);
        const Product p{1, size.m, size.n, size.k, a.matrix(), b.matrix(), 1, {}, type, nullptr, 0, 0, 0, 0};
        const Bytes c = computed(*cpu, p);
        for (const int64_t threads : {2, 7, 64}) EXPECT_EQ(computed(*cpu, p, threads), c) << threads << " threads";
        if (before != nullptr) {
          EXPECT_EQ(computed(*before, p), c) << before->level << " and " << cpu->level;
        }
      }
    if (std::string(cpu->level) != "baseline") before = cpu;
  }
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
  const Case size{9, 20, 50};
  const Numbers a(3 * size.m, size.k, Dtype::f32, false, 1), b(size.k, size.n, Dtype::f32, false, 2);
  const Numbers row(1, size.n, Dtype::f32, false, 3);
  Product p{3, size.m, size.n, size.k, a.matrix(), b.matrix(), 1, row.matrix(), Dtype::f32, nullptr, 0, 0, 0, 0};
  p.base.row_step = 0;
  p.a.batch_step = size.m * size.k;
  const CpuKernels& cpu = cpu_kernels();
  const Bytes batches = computed(cpu, p);
  p.batches = 1;
  p.m *= 3;
  EXPECT_EQ(computed(cpu, p), batches);

  Bytes c = batches;
  p.base = {c.data(), Dtype::f32, size.n, 1, 0};
  const Bytes apart = computed(cpu, p);
  p.c = c.data();
  p.c_step = size.n;
  cut(p, 4);
  std::vector<unsigned char> memory(static_cast<std::size_t>(product_bytes(p)) + 64);
  cpu.product(p, memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64, 0, product_units(p));
  EXPECT_EQ(c, apart);
  EXPECT_NE(c, batches);
}

/// Codes [height, width] with a scale for each row, for all or for some columns, and the bf16 numbers that they are.
struct Coded {
  Coded(Number type, int64_t height, int64_t width, int64_t block, bool one) : width_(width) {
    const int64_t groups = (width + block - 1) / block;
    std::mt19937 random(static_cast<unsigned>(height * 1000 + width));
    for (int64_t i = 0; i < (one ? 1 : height) * groups; ++i)
      scale_.push_back(std::uniform_real_distribution<float>(0.001F, 2)(random));
    for (int64_t i = 0; i < height * width; ++i) {
      values_.push_back(static_cast<uint8_t>(height * width < 256 ? random() % 0x7c : i));
      const uint8_t code = values_.back();
      const float x = type == Number::e4m3   ? to_float(E4m3{code})
                      : type == Number::e5m2 ? to_float(E5m2{code})
                                             : to_float(static_cast<int8_t>(code));
      Bfloat16 number{};
      round_to(x * scale_.at(static_cast<std::size_t>((one ? 0 : i / width * groups) + i % width / block)), &number);
      numbers_.push_back(number.bits);
    }
    codes_ = {type, width, block, values_.data(), scale_.data(), one ? 0 : groups, false};
  }
  [[nodiscard]] Codes codes(bool turned) const {
    Codes made = codes_;
    made.turned = turned;
    return made;
  }
  [[nodiscard]] Matrix matrix(bool turned) const {
    return {numbers_.data(), Dtype::bf16, turned ? 1 : width_, turned ? width_ : 1, 0};
  }

 private:
  int64_t width_;
  std::vector<uint8_t> values_;
  std::vector<float> scale_;
  std::vector<uint16_t> numbers_;
  Codes codes_{};
};

/// Every code, those that are no numbers as well.
TEST(Product, OfCodesHasTheBitsOfTheirNumbersAtEveryLevel) {
  for (const CpuKernels* cpu : cpu_levels())
    for (const Case& size : kCases)
      for (const Number type : {Number::e4m3, Number::e5m2, Number::int8})
        for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
          for (const bool turned : {false, true})
            for (const int64_t block : {1000, 64, 3}) {
              const Numbers a(size.m, size.k, dtype, false, 1);
              const Coded b(type, turned ? size.n : size.k, turned ? size.k : size.n, block, size.n % 2 == 0);
              const Codes codes = b.codes(turned);
              Product p{1, size.m, size.n, size.k, a.matrix(), b.matrix(turned), 1, {}, dtype, nullptr, 0, 0, 0, 0};
              const Bytes dense = computed(*cpu, p);
              p.b = {};
              p.codes = &codes;
              for (const int64_t threads : {1, 7})
                ASSERT_EQ(computed(*cpu, p, threads), dense)
                    << cpu->level << " " << size.m << " x " << size.k << " x " << size.n << ", code "
                    << static_cast<int>(type) << (turned ? ", turned" : "") << ", block " << block;
            }
}

}  // namespace
}  // namespace trainer::kernels
