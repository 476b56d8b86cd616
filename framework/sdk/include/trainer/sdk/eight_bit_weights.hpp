/// @file The codec for weights in 8 bits, for strategies that pack weights (WeightFormat): numbers to 8 bits and back,
/// products with packed weights, weights that a file already holds in fp8, and the option that names excluded layers.
/// The CPU, CUDA (kernels of ops/eight_bits.hpp) and LibTorch's operators give the same bits.
#pragma once

#include <trainer/sdk/ops/eight_bits.hpp>
#include <trainer/sdk/weights.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trainer::eight_bits {

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
TRAINER_API float largest_of(Code code);

/// "channel", "tensor" or "block"; throws Error (bad_recipe) with `key`, e.g. "memory.NAME.granularity", otherwise.
TRAINER_API Granularity granularity_from(const std::string& text, const std::string& key);

/// Scales of a weight [out, in] that `quantize` packs.
TRAINER_API int64_t scale_count(Granularity granularity, int64_t out, int64_t in);

/// scale = max|w| / largest over what shares it (1 where all are zero), value = w / scale, clamped to it and rounded to
/// nearest even. The clamp comes before the cast: LibTorch 2.11 turns what is too large into NaN. `block` falls back to
/// `channel` when `in` is not a multiple of kBlock. Works on a few rows at a time: besides the result, about 2 MB.
/// `weight` is a floating matrix; `name` is for messages. Throws Error (bad_input, FP8_NOT_FINITE).
TRAINER_API Packed quantize(const at::Tensor& weight, Granularity granularity, const std::string& name,
                            Code code = Code::e4m3);

/// fp32 numbers as e4m3 or int8, those beyond the largest as the largest: the clamp and the cast of `quantize`. Changes
/// `numbers`.
TRAINER_API at::Tensor saturated_cast(at::Tensor numbers, Code code = Code::e4m3);

/// Each row of a floating matrix with its own scale, by LibTorch's operators on any device: the numbers of
/// quantize_rows (ops/eight_bits.hpp) without factors. A row with NaN or infinity has no finite products.
TRAINER_API Rows quantize_rows(const at::Tensor& matrix, Code code);

/// values * scale, multiplied in fp32 and rounded once to `dtype`: [out, in] on the device of `packed`. No autograd
/// history. On the CPU our own loop (to bf16 3.8 G elements/s on a core, where LibTorch 2.11 converts 0.2), on CUDA a
/// kernel, without kernels `dequantize_by_operators`.
TRAINER_API at::Tensor dequantize(const Packed& packed, at::ScalarType dtype);

/// The same with LibTorch's operators, for any device.
TRAINER_API at::Tensor dequantize_by_operators(const Packed& packed, at::ScalarType dtype);

/// Whether the CPU computes with it, or a dry run stands for the CPU.
TRAINER_API bool on_cpu(const at::Tensor& tensor);

/// x W^T (`turned`) or x W in x's dtype, with W dequantized in it. Where the SDK's panels replace LibTorch's products
/// of bf16, W is expanded in them; the bits are the same.
TRAINER_API at::Tensor product(const at::Tensor& x, const Packed& packed, bool turned);

/// The weight `name` ("<layer>.weight", [out, in]) exactly as stored when it is fp8; nullopt when it is not.
/// Its scale is one of these tensors, in fp32, bf16 or fp16; without any it is 1 (a plain cast):
///   "<layer>.weight_scale"      ComfyUI, compressed-tensors: one, or one an output channel
///   "<layer>.scale_weight"      older ComfyUI, musubi-tuner: one, [out, 1], or [out, blocks, 1] along the input
///   "<layer>.weight_scale_inv"  DeepSeek, transformers: 128 x 128 tiles, the last ones cut (a factor, despite its
///   name)
/// "<layer>.comfy_quant" (JSON) is obeyed; scales of activations ("input_scale", "scale_input") do not matter here.
/// Throws Error (bad_input, FP8_SCALE) for scales that fit no layout, are negative or not finite, stand beside a weight
/// that is not fp8, or are two; (FP8_NOT_FINITE) for NaN among the values.
TRAINER_API std::optional<Packed> stored_fp8(WeightSource& source, const std::string& name);

/// The option `exclude` of a strategy that packs weights: which layers stay in the model's dtype.
class TRAINER_API ExcludedLayers {
 public:
  /// `strategy` is for messages; `patterns` are names of layers with * as wildcard.
  ExcludedLayers(std::string strategy, std::vector<std::string> patterns);
  [[nodiscard]] bool contains(const std::string& layer) const;
  /// Throws Error (bad_recipe) for a pattern that matches no layer of the file. Usual patterns ("*embed*",
  /// "*modulation*", "norm_out*", "proj_out*", "*time*") may match nothing: a manifest names them for several model
  /// families at once. Checks once.
  void require_matches(const WeightSource& source);

 private:
  std::string strategy_;
  std::vector<std::string> patterns_;
  bool checked_ = false;
};

}  // namespace trainer::eight_bits
