/// @file The CUDA kernels for 8-bit numbers (eight_bits_checks.hpp): from rows that packs fit, from rows that they do
/// not, with rests behind the packs, at any address; every code and every 16-bit number, ties, zeros, NaN and infinity.
#include "eight_bits_checks.hpp"

namespace trainer::kernels {
namespace {

using test::Buffer;
using test::ByteShape;
using test::cuda;
using test::Role;

constexpr ByteShape kShapes[] = {{0, 64},  {1, 1}, {3, 7, 1}, {2, 71},   {5, 64},   {5, 64, 3},
                                 {6, 130}, {3, 0}, {5, 256},  {2, 3001}, {1, 4111}, {2, 4096, 8}};

template <typename From, typename To>
void quantize() {
  for (const ByteShape& s : kShapes)
    for (const auto& [gap, with_factors] : {std::pair<int64_t, bool>{0, false}, {0, true}, {3, true}, {8, false}}) {
      const int64_t step = s.width + gap;
      Buffer<From> x(Role::input, s.rows * step, s.offset);
      x.random(1, 3);
      if (s.rows > 4 && s.width > 0) {
        for (int64_t i = 0; i < s.width; ++i) round_to(0.0F, &x[step + i]);
        round_to(NAN, &x[2 * step + s.width / 2]);
        round_to(-INFINITY, &x[3 * step + s.width / 3]);
        for (int64_t i = 0; i < s.width; ++i) round_to(static_cast<float>(i % 7) * 0x1p-133F, &x[4 * step + i]);
      }
      Buffer<float> factors(Role::input, s.width);
      factors.random(2);
      test::check_quantize_rows<From, To>(x, s, step, with_factors ? &factors : nullptr);
    }
  if constexpr (sizeof(From) == 2)  // every number of the type, in rows of about one size and of all sizes
    for (const bool all_sizes : {false, true}) {
      Buffer<From> x(Role::input, 65536);
      for (int64_t i = 0; i < 65536; ++i) x[i].bits = static_cast<uint16_t>(all_sizes ? i / 256 + i % 256 * 256 : i);
      test::check_quantize_rows<From, To>(x, {256, 256}, 256, nullptr);
    }
}

TEST(EightBitsOnCpu, QuantizeRows) {
  quantize<float, E4m3>(), quantize<Bfloat16, E4m3>(), quantize<Float16, E4m3>();
  quantize<float, int8_t>(), quantize<Bfloat16, int8_t>(), quantize<Float16, int8_t>();
}

template <typename From, typename To>
void scale_sums() {
  for (const ByteShape& s : kShapes)
    for (const bool with_columns : {false, true}) test::check_scale_sums<From, To>(s, with_columns);
}

TEST(EightBitsOnCpu, ScaleSums) {
  scale_sums<float, float>(), scale_sums<float, Bfloat16>(), scale_sums<float, Float16>();
  scale_sums<int32_t, float>(), scale_sums<int32_t, Bfloat16>(), scale_sums<int32_t, Float16>();
}

template <typename From, typename To>
void expand() {
  for (const ByteShape& s : kShapes)
    for (const auto& [block, one_row] :
         {std::pair{std::max<int64_t>(s.width, 1), false}, {64, true}, {24, false}, {5, true}}) {
      Buffer<From> values(Role::input, s.rows * s.width, s.offset);
      Buffer<float> scale(Role::input, (one_row ? 1 : s.rows) * ((s.width + block - 1) / block));
      values.random(1), scale.random(2);
      test::check_expand_codes<From, To>(values, scale, s, block, one_row);
    }
  constexpr int64_t kScales = 9;  // every code, by scales that reach what overflows and what vanishes
  Buffer<From> codes(Role::input, 256 * kScales);
  Buffer<float> scale(Role::input, kScales);
  for (int64_t i = 0; i < codes.count(); ++i) std::memset(static_cast<void*>(&codes[i]), static_cast<int>(i % 256), 1);
  for (int i = 0; i < kScales; ++i) scale[i] = std::ldexp(i % 2 == 0 ? 1.0F : 1.37F, (i - 4) * 14);
  test::check_expand_codes<From, To>(codes, scale, {kScales, 256}, 256, false);
}

TEST(EightBitsOnCpu, ExpandCodes) {
  expand<E4m3, float>(), expand<E4m3, Bfloat16>(), expand<E4m3, Float16>();
  expand<E5m2, float>(), expand<E5m2, Bfloat16>(), expand<E5m2, Float16>();
  expand<int8_t, float>(), expand<int8_t, Bfloat16>(), expand<int8_t, Float16>();
}

TEST(EightBitsOnCpu, TransposeBytes) {
  for (const ByteShape& s : {ByteShape{64, 64},
                             {64, 64, 1},
                             {128, 192},
                             {130, 67},
                             {68, 64},
                             {64, 68},
                             {1, 65, 4},
                             {65, 1},
                             {0, 9},
                             {9, 0},
                             {256, 320, 2}})
    test::check_transpose_bytes(s);
}

TEST(EightBitsOnCpu, WhatHasNoKernelIsRefused) {
  Buffer<float> x(Role::input, 64), scale(Role::output, 8), y(Role::output, 64);
  std::fill(y.begin(), y.end(), test::Result::kPattern);
  for (const auto& [from, to] : {std::pair{Number::f32, Number::e5m2},
                                 {Number::f32, Number::f32},
                                 {Number::f32, Number::int32},
                                 {Number::e4m3, Number::int8}}) {
    const QuantizeRows a{from, to, 8, 8, x.data(), 8, nullptr, y.data(), scale.data()};
    EXPECT_NE(cuda().quantize_rows(&a, nullptr), 0);
  }
  const ScaleSums sums{Number::bf16, Number::f32, 8, 8, x.data(), x.data(), nullptr, y.data()};
  EXPECT_NE(cuda().scale_sums(&sums, nullptr), 0);
  for (const auto& [from, to] : {std::pair{Number::f32, Number::f32}, {Number::e4m3, Number::int8}}) {
    const ExpandCodes a{from, to, 8, 8, 8, x.data(), x.data(), 1, y.data()};
    EXPECT_NE(cuda().expand_codes(&a, nullptr), 0);
  }
  const SwiGlu doubles{Dtype::f64, 8, 8, 0, x.data(), nullptr, 8, 0};
  EXPECT_NE(cuda().swiglu(&doubles, y.data(), nullptr), 0);
  EXPECT_TRUE(std::all_of(y.begin(), y.end(), [](unsigned char byte) { return byte == test::Result::kPattern; }));
}

}  // namespace
}  // namespace trainer::kernels
