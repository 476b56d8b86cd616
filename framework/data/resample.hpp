/// @file Lanczos resampling of 8-bit RGB, row by row: of a picture of any size only the rows that make the result are
/// held.
///
/// After Pillow's resize with LANCZOS (libImaging/Resample.c), which the Python trainers use, to the bit: three lobes
/// as wide as the reduction, first the width, then the height (of some tall pictures Pillow turns this round), weights
/// in fixed point, each pass rounded to bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trainer::data {

class Resampler {
 public:
  /// A picture of from_width x from_height resized to to_width x to_height, of which `width` x `height` from the middle
  /// are kept. All sizes > 0, width <= to_width, height <= to_height.
  struct Sizes {
    int64_t from_width, from_height, to_width, to_height, width, height;
  };
  /// What is done for every tap: one pixel out of several, and a row added to sums. All make the same bytes.
  struct Loops {
    void (*weigh_pixels)(uint8_t* out, const uint8_t* from, const int32_t* weights, int64_t count);
    void (*add_row)(int32_t* sums, const uint8_t* row, int32_t weight, int64_t size);
  };
  static Loops plain();
  static Loops fastest();  ///< on this processor
  explicit Resampler(const Sizes& sizes, const Loops& loops = fastest());
  /// The next row from the top, 3 * from_width bytes.
  void add(const uint8_t* row);
  /// After all rows: 3 * width * height bytes.
  void finish(uint8_t* rgb) const;

 private:
  /// Which inputs make an output, and their weights: output i reads `counts[i]` from `firsts[i]` on.
  struct Taps {
    std::vector<int64_t> firsts, counts;
    std::vector<int32_t> weights;  ///< `stride` an output
    int64_t stride = 0;
  };
  static Taps taps(int64_t from, int64_t to, int64_t kept);

  Sizes sizes_;
  Loops loops_;
  Taps columns_, rows_;
  int64_t first_row_, last_row_, next_ = 0;
  std::vector<uint8_t> row_;     // the last one, and a byte
  std::vector<uint8_t> narrow_;  // rows first_row_ to last_row_, resized in width
};

}  // namespace trainer::data
