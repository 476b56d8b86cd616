// Products with weights of 8 bits, which are expanded in the product's panels.
#include <gtest/gtest.h>
#include <kernels/cpu.hpp>
#include <kernels/eight_bits_numbers.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "products.hpp"

namespace trainer::kernels {
namespace {

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
