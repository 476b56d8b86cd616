/// @file The CUDA kernels for 8-bit numbers, run on the CPU (cuda_on_cpu.hpp), against loops over single numbers, bit
/// for bit: from rows that packs fit, from rows that they do not, with rests behind the packs, at any address, with
/// zeros, NaN and infinity.
#include <gtest/gtest.h>

#include <cmath>

#include "buffers.hpp"

namespace trainer::kernels {
namespace {

using test::Buffer;
using test::cuda_on_cpu;

struct Shape {
  int64_t rows, width, offset;
};
constexpr Shape kShapes[] = {{0, 64, 0},  {1, 1, 0}, {3, 7, 1},   {2, 71, 0},   {5, 64, 0},   {5, 64, 3},
                             {6, 130, 0}, {3, 0, 0}, {5, 256, 0}, {2, 3001, 0}, {1, 4111, 0}, {2, 4096, 8}};

template <typename T>
bool same(const T& a, const T& b) {
  if (std::memcmp(&a, &b, sizeof(T)) == 0) return true;
  const float x = to_float(a), y = to_float(b);
  return std::isnan(x) && std::isnan(y);
}

template <typename From, typename To>
void quantize(Number from, Number to, const Shape& s, int64_t step, bool with_factors) {
  auto x = Buffer<From>::random(s.rows * step, 1, s.offset);
  if (s.rows > 4 && s.width > 0) {
    for (int64_t i = 0; i < s.width; ++i) round_to(0.0F, &x[step + i]);
    round_to(NAN, &x[2 * step + s.width / 2]);
    round_to(-INFINITY, &x[3 * step + s.width / 3]);
  }
  const auto factors = Buffer<float>::random(s.width, 2);
  Buffer<To> values(s.rows * s.width, s.offset);
  Buffer<float> scale(s.rows);
  const QuantizeRows a{
      from, to, s.rows, s.width, x.data(), step, with_factors ? factors.data() : nullptr, values.data(), scale.data()};
  ASSERT_EQ(cuda_on_cpu().quantize_rows(&a, nullptr), 0);
  EXPECT_TRUE(values.intact() && scale.intact());
  for (int64_t row = 0; row < s.rows; ++row) {
    const auto number = [&](int64_t i) { return to_float(x[row * step + i]) * (with_factors ? factors[i] : 1.0F); };
    uint32_t largest = 0;
    for (int64_t i = 0; i < s.width; ++i) largest = std::max(largest, magnitude(number(i)));
    const float expected = row_scale(float_of(largest), largest_of(To{}));
    ASSERT_TRUE(same(scale[row], expected)) << row << " of " << s.rows << " x " << s.width;
    for (int64_t i = 0; i < s.width; ++i) {
      To code;
      round_to(number(i) / expected, &code);
      ASSERT_TRUE(same(values[row * s.width + i], code)) << row << ", " << i << " of " << s.rows << " x " << s.width;
    }
  }
}

TEST(EightBitsOnCpu, QuantizeRows) {
  for (const Shape& s : kShapes)
    for (const bool with_factors : {false, true}) {
      quantize<float, E4m3>(Number::f32, Number::e4m3, s, s.width + 3, with_factors);
      quantize<Bfloat16, E4m3>(Number::bf16, Number::e4m3, s, s.width, with_factors);
      quantize<Bfloat16, int8_t>(Number::bf16, Number::int8, s, s.width + 8, with_factors);
      quantize<Float16, int8_t>(Number::f16, Number::int8, s, s.width, with_factors);
    }
}

template <typename From, typename To>
void scale_sums(Number from, Number to, const Shape& s, bool with_columns) {
  const auto sums = Buffer<From>::random(s.rows * s.width, 1, s.offset);
  const auto rows = Buffer<float>::random(s.rows, 2), columns = Buffer<float>::random(s.width, 3);
  Buffer<To> y(s.rows * s.width, s.offset);
  const ScaleSums a{from,    to, s.rows, s.width, sums.data(), rows.data(), with_columns ? columns.data() : nullptr,
                    y.data()};
  ASSERT_EQ(cuda_on_cpu().scale_sums(&a, nullptr), 0);
  EXPECT_TRUE(y.intact());
  for (int64_t i = 0; i < s.rows * s.width; ++i) {
    To expected;
    round_to(to_float(sums[i]) * rows[i / s.width] * (with_columns ? columns[i % s.width] : 1.0F), &expected);
    ASSERT_TRUE(same(y[i], expected)) << i << " of " << s.rows << " x " << s.width;
  }
}

TEST(EightBitsOnCpu, ScaleSums) {
  for (const Shape& s : kShapes)
    for (const bool with_columns : {false, true}) {
      scale_sums<int32_t, Bfloat16>(Number::int32, Number::bf16, s, with_columns);
      scale_sums<int32_t, float>(Number::int32, Number::f32, s, with_columns);
      scale_sums<float, Float16>(Number::f32, Number::f16, s, with_columns);
      scale_sums<float, Bfloat16>(Number::f32, Number::bf16, s, with_columns);
    }
}

template <typename From, typename To>
void expand(Number from, Number to, const Shape& s, int64_t block, bool one_row) {
  const int64_t columns = (s.width + block - 1) / block;
  const auto values = Buffer<From>::random(s.rows * s.width, 1, s.offset);
  const auto scale = Buffer<float>::random((one_row ? 1 : s.rows) * columns, 2);
  Buffer<To> y(s.rows * s.width, s.offset);
  const ExpandCodes a{from, to, s.rows, s.width, block, values.data(), scale.data(), one_row ? 0 : columns, y.data()};
  ASSERT_EQ(cuda_on_cpu().expand_codes(&a, nullptr), 0);
  EXPECT_TRUE(y.intact());
  for (int64_t i = 0; i < s.rows * s.width; ++i) {
    To expected;
    round_to(to_float(values[i]) * scale[i / s.width * a.scale_step + i % s.width / block], &expected);
    ASSERT_TRUE(same(y[i], expected)) << i << " of " << s.rows << " x " << s.width << " in blocks of " << block;
  }
}

TEST(EightBitsOnCpu, ExpandCodes) {
  for (const Shape& s : kShapes)
    for (const int64_t block : {std::max<int64_t>(s.width, 1), int64_t{64}, int64_t{24}, int64_t{5}})
      for (const bool one_row : {false, true}) {
        expand<E4m3, Bfloat16>(Number::e4m3, Number::bf16, s, block, one_row);
        expand<E5m2, float>(Number::e5m2, Number::f32, s, block, one_row);
        expand<int8_t, Float16>(Number::int8, Number::f16, s, block, one_row);
      }
}

TEST(EightBitsOnCpu, TransposeBytes) {
  for (const Shape& s : {Shape{64, 64, 0},
                         {64, 64, 1},
                         {128, 192, 0},
                         {130, 67, 0},
                         {68, 64, 0},
                         {64, 68, 0},
                         {1, 65, 4},
                         {65, 1, 0},
                         {0, 9, 0}}) {
    const auto x = Buffer<uint8_t>::random(s.rows * s.width, 1, s.offset);
    Buffer<uint8_t> y(s.rows * s.width, s.offset);
    const TransposeBytes a{s.rows, s.width, x.data(), y.data()};
    ASSERT_EQ(cuda_on_cpu().transpose_bytes(&a, nullptr), 0);
    EXPECT_TRUE(y.intact());
    for (int64_t i = 0; i < s.rows * s.width; ++i)
      ASSERT_EQ(y[i % s.width * s.rows + i / s.width], x[i]) << i << " of " << s.rows << " x " << s.width;
  }
}

}  // namespace
}  // namespace trainer::kernels
