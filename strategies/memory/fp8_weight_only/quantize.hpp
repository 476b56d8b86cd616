/// @file Packed weights, and how a weight in any floating dtype becomes one. Used while a model streams from its files,
/// by this strategy and by those of w8a8.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace trainer::fp8 {

/// A weight [out, in] as 8-bit numbers: weight[o][i] = values[o][i] * scale[o][i / column_block].
struct Packed {
  at::Tensor values;         ///< [out, in], Float8_e4m3fn (Float8_e5m2 only when a file holds that) or Char, contiguous
  at::Tensor scale;          ///< [1 or out, columns] fp32; one row stands for all
  int64_t column_block = 0;  ///< inputs that share a column of `scale`; columns * column_block >= in
};

/// How many weights share a scale: an output channel, all, or kBlock inputs of a channel.
enum class Granularity { channel, tensor, block };
inline constexpr int64_t kBlock = 64;

/// What the numbers are.
enum class Code { e4m3, int8 };
/// The largest that is used: 448, or 127 (so that every number has its negative).
float largest_of(Code code);

/// "channel", "tensor" or "block"; throws Error (bad_recipe) otherwise.
Granularity granularity_from(const std::string& text);

/// Scales of a weight [out, in] that `quantize` packs.
int64_t scale_count(Granularity granularity, int64_t out, int64_t in);

/// scale = max|w| / largest over what shares it (1 where all are zero), value = w / scale, clamped to it and rounded to
/// nearest even. The clamp comes before the cast: LibTorch 2.11 turns what is too large into NaN. `block` falls back to
/// `channel` when `in` is no multiple of kBlock. Works on a few rows at a time: besides the result, about 2 MB.
/// `weight` is a floating matrix on the CPU; `name` is for messages. Throws Error (bad_input, FP8_NOT_FINITE).
Packed quantize(const at::Tensor& weight, Granularity granularity, const std::string& name, Code code = Code::e4m3);

/// fp32 numbers as e4m3 or int8, those beyond it as the largest: the clamp and the cast of `quantize`. Changes
/// `numbers`.
at::Tensor saturated_cast(at::Tensor numbers, Code code = Code::e4m3);

/// [..., 1] scales for rows whose largest absolute values are `amax` [..., 1].
at::Tensor scale_for(const at::Tensor& amax, Code code);

/// Throws Error (bad_input, FP8_NOT_FINITE) when a matrix of any floating dtype holds NaN or infinity.
void require_finite(const at::Tensor& matrix, const std::string& name);

}  // namespace trainer::fp8
