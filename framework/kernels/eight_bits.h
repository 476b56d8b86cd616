/// @file Arguments of the kernels for 8-bit numbers: rows made into them, sums of their products scaled, weights
/// expanded, bytes transposed. Plain pointers, the same for the CPU and for CUDA; called by the operators of the SDK
/// (framework/sdk/src/fused/eight_bits.cpp), which own the tensors. Nothing here allocates.
///
/// Steps are in elements. Matrices lie row by row. Every size may be zero, none needs to be a multiple of anything, no
/// pointer needs more than the alignment of its elements. The arithmetic of one number: kernels/eight_bits_numbers.h.
#pragma once

#include <cstdint>

namespace trainer::kernels {

enum class Number : int32_t { f32, bf16, f16, e4m3, e5m2, int8, int32 };

/// Each row's scale: its largest absolute number over the largest of the code, at least the smallest normal fp32, 1 for
/// rows of zeros; values = x factors / scale in the code, beyond its largest as that. NaN in a row: all of it, and its
/// scale. Infinity: that number is NaN, the others 0, the scale infinity. int8 has no NaN, there it is 0.
struct QuantizeRows {
  Number from, to;  ///< f32, bf16 or f16; e4m3 or int8
  int64_t rows, width;
  const void* x;         ///< [rows, width]
  int64_t x_step;        ///< from a row to the next
  const float* factors;  ///< one a column, multiplied in fp32; null: 1
  void* values;          ///< [rows, width] dense
  float* scale;          ///< [rows]
};

/// y[r][c] = sums[r][c] row_scale[r] column_scale[c], in this order in fp32, rounded once.
struct ScaleSums {
  Number from, to;  ///< f32 or int32; f32, bf16 or f16
  int64_t rows, width;
  const void* sums;           ///< [rows, width] dense
  const float* row_scale;     ///< [rows]
  const float* column_scale;  ///< [width]; null: 1
  void* y;                    ///< [rows, width] dense
};

/// y[r][c] = values[r][c] scale[r][c / block], in fp32, rounded once.
struct ExpandCodes {
  Number from, to;  ///< e4m3, e5m2 or int8; f32, bf16 or f16
  int64_t rows, width, block;
  const void* values;  ///< [rows, width] dense
  const float* scale;
  int64_t scale_step;  ///< from a row's scales to the next row's; 0: one row for all
  void* y;             ///< [rows, width] dense
};

/// y [width, rows] = x [rows, width], bytes, both dense.
struct TransposeBytes {
  int64_t rows, width;
  const void* x;
  void* y;
};

}  // namespace trainer::kernels
