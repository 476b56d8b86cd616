/// @file The CUDA kernels for 8-bit numbers, run on the CPU in every way, against tables of codes (formats.hpp), bit
/// for bit. Used by the tests of many small shapes and by those of real ones.
#pragma once

#include <sstream>

#include "buffers.hpp"
#include "formats.hpp"

namespace trainer::kernels::test {

struct ByteShape {
  int64_t rows, width;
  int64_t offset = 0;  ///< elements behind what is aligned
};

/// Counts what is not as it should be, and says so once.
class Others {
 public:
  Others(std::string what, Number from, Number to, const ByteShape& s) {
    std::ostringstream text;
    text << what << " from type " << static_cast<int>(from) << " to " << static_cast<int>(to) << ", " << s.rows << " x "
         << s.width << ", offset " << s.offset;
    what_ = text.str();
  }
  Others(const Others&) = delete;
  Others& operator=(const Others&) = delete;
  ~Others() { EXPECT_EQ(others_, 0) << what_ << ", the first at " << first_; }
  [[nodiscard]] const std::string& what() const { return what_; }
  void expect(bool same, int64_t at) {
    if (!same && others_++ == 0) first_ = at;
  }

 private:
  std::string what_;
  int64_t others_ = 0, first_ = -1;
};

/// x has rows `step` apart.
template <typename From, typename To>
void check_quantize_rows(Buffer<From>& x, const ByteShape& s, int64_t step, Buffer<float>* factors) {
  Buffer<To> values(Role::output, s.rows * s.width, s.offset);
  Buffer<float> scale(Role::output, s.rows);
  const QuantizeRows a{Kind<From>::kNumber,
                       Kind<To>::kNumber,
                       s.rows,
                       s.width,
                       x.data(),
                       step,
                       factors != nullptr ? factors->data() : nullptr,
                       values.data(),
                       scale.data()};
  Others others("quantize_rows", a.from, a.to, s);
  if (!same_in_every_way(others.what(), {values, scale}, [&] { return cuda().quantize_rows(&a, nullptr); })) return;
  for (int64_t row = 0; row < s.rows; ++row) {
    const auto number = [&](int64_t i) {
      return static_cast<float>(Kind<From>::value(x[row * step + i])) * (factors != nullptr ? (*factors)[i] : 1.0F);
    };
    float largest = 0;
    for (int64_t i = 0; i < s.width && !std::isnan(largest); ++i) {
      const float size = std::abs(number(i));
      largest = size <= largest ? largest : size;
    }
    float expected = largest / (std::is_same_v<To, E4m3> ? 448.0F : 127.0F);
    if (largest == 0) expected = 1;
    if (expected < 0x1p-126F) expected = 0x1p-126F;
    others.expect(Kind<float>::is(scale[row], expected), row * s.width);
    for (int64_t i = 0; i < s.width; ++i)
      others.expect(Kind<To>::is(values[row * s.width + i], number(i) / expected), row * s.width + i);
  }
}

template <typename From, typename To>
void check_scale_sums(const ByteShape& s, bool with_columns) {
  Buffer<From> sums(Role::input, s.rows * s.width, s.offset);
  Buffer<float> rows(Role::input, s.rows), columns(Role::input, s.width, s.offset % 2);
  sums.random(1, 1000), rows.random(2, 0.01), columns.random(3);
  if (sums.count() > 100 && std::is_same_v<From, float>)
    for (int i = 0; i < 4; ++i) sums[i * 25] = static_cast<From>(i % 2 == 0 ? 3e38F : -1e-42F);
  Buffer<To> y(Role::output, s.rows * s.width, s.offset);
  const ScaleSums a{Kind<From>::kNumber,
                    Kind<To>::kNumber,
                    s.rows,
                    s.width,
                    sums.data(),
                    rows.data(),
                    with_columns ? columns.data() : nullptr,
                    y.data()};
  Others others("scale_sums", a.from, a.to, s);
  if (!same_in_every_way(others.what(), {y}, [&] { return cuda().scale_sums(&a, nullptr); })) return;
  for (int64_t i = 0; i < y.count(); ++i) {
    const volatile float once = static_cast<float>(Kind<From>::value(sums[i])) * rows[i / s.width];
    const volatile float twice = once * (with_columns ? columns[i % s.width] : 1.0F);
    others.expect(Kind<To>::is(y[i], twice), i);
  }
}

/// Codes in blocks of columns that share a scale, which rows may share as well.
template <typename From, typename To>
void check_expand_codes(Buffer<From>& values, Buffer<float>& scale, const ByteShape& s, int64_t block, bool one_row) {
  Buffer<To> y(Role::output, s.rows * s.width, s.offset);
  const int64_t columns = (s.width + block - 1) / block;
  const ExpandCodes a{Kind<From>::kNumber, Kind<To>::kNumber,     s.rows,  s.width, block, values.data(),
                      scale.data(),        one_row ? 0 : columns, y.data()};
  Others others("expand_codes", a.from, a.to, s);
  if (!same_in_every_way(others.what(), {y}, [&] { return cuda().expand_codes(&a, nullptr); })) return;
  for (int64_t i = 0; i < y.count(); ++i) {
    const volatile float number =
        static_cast<float>(Kind<From>::value(values[i])) * scale[i / s.width * a.scale_step + i % s.width / block];
    others.expect(Kind<To>::is(y[i], number), i);
  }
}

inline void check_transpose_bytes(const ByteShape& s) {
  Buffer<uint8_t> x(Role::input, s.rows * s.width, s.offset), y(Role::output, s.rows * s.width, s.offset);
  x.random(1);
  const TransposeBytes a{s.rows, s.width, x.data(), y.data()};
  Others others("transpose_bytes", Number::int8, Number::int8, s);
  if (!same_in_every_way(others.what(), {y}, [&] { return cuda().transpose_bytes(&a, nullptr); })) return;
  for (int64_t i = 0; i < y.count(); ++i) others.expect(y[i % s.width * s.rows + i / s.width] == x[i], i);
}

}  // namespace trainer::kernels::test
