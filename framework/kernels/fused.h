/// @file Arguments of the fused kernels: plain pointers, sizes and steps, the same for the CPU and for CUDA. Called by
/// the operators of the SDK (framework/sdk/src/fused), which own the tensors; nothing here allocates.
///
/// Steps are in elements. Whatever is called a row has its elements side by side. Every size may be zero, none needs to
/// be a multiple of anything. Sums are formed in fp32 (fp64 for fp64 data), always in the same order.
#pragma once

#include <kernels/eight_bits.h>

#include <cstdint>

namespace trainer::kernels {

enum class Dtype : int32_t { f32, bf16, f64 };

/// y = LayerNorm(x) (1 + scale) + shift over rows of `width`; row r belongs to sample r / rows_per_sample, samples
/// are whole. After torch's layer_norm without affine parameters: biased variance, 1 / sqrt(variance + eps).
struct ModulatedNorm {
  Dtype dtype;
  int64_t rows, width, rows_per_sample;
  double eps;
  const void *x, *shift, *scale;   ///< x [rows, width] dense; shift, scale one row a sample
  int64_t shift_step, scale_step;  ///< from a sample to the next; 0: one for all
};

/// Rows of attention heads: RMSNorm with a weight, then each adjacent pair (2i, 2i + 1) turned by its angle.
/// x [samples, tokens, heads, width], heads side by side in a token; width is even.
struct NormRope {
  Dtype dtype;
  int64_t samples, tokens, heads, width;
  double eps;
  const void *x, *weight;     ///< weight [width]
  const float *table;         ///< (cos, sin) of pair i of a token at table + token * width + 2 i
  int64_t x_sample, x_token;  ///< steps of x
  int64_t y_sample, y_token;  ///< steps of the turned rows, or of their gradient
  int64_t table_sample;       ///< 0: one table for all samples
};

/// y = [before, silu(gate) up] with [gate, up] = x [rows, 2 width]; `before` [rows, before_width] is copied.
struct SwiGlu {
  Dtype dtype;
  int64_t rows, width, before_width;
  const void *x, *before;       ///< before: null when before_width is 0
  int64_t x_step, before_step;  ///< from a row to the next
};

/// x + gate y over rows of `width`; row r belongs to sample r / rows_per_sample, samples are whole.
struct GatedResidual {
  Dtype dtype;
  int64_t rows, width, rows_per_sample;
  const void *x, *gate, *y;  ///< x, y [rows, width] dense, null where a kernel reads none; gate one row a sample
  int64_t gate_step;         ///< from a sample to the next; 0: one for all
};

/// fp32 numbers as sums of bf16 ones: part 0 is factor x rounded, part 1 what that leaves out rounded, part 2 what both
/// leave out; all three are factor x to the last bit. y holds three matrices of x's size, part order[i] in slot i.
struct Bf16Parts {
  static constexpr int kSlots = 3;
  int64_t rows, width;
  float factor;
  const float *x;               ///< [rows, width] dense
  int64_t slot_step, row_step;  ///< of y, in elements
  int32_t order[kSlots];
  void *y;
};

/// A matrix, or one of each of a batch: elements of a row, or those of a column, lie side by side.
struct Matrix {
  const void *data;
  Dtype dtype;
  int64_t row_step, column_step;  ///< one of them is 1
  int64_t batch_step;             ///< from a matrix to the next; 0: one for all
};

/// Pictures [samples, height, width, channels] whose patches are the rows of a matrix, each [kernel_height,
/// kernel_width, channels], with zeros where it reaches beyond the picture.
struct Patches {
  int64_t height, width, channels, kernel_height, kernel_width;
  int64_t step, down, across;     ///< from a patch to the next; how far the first begins above and left of the picture
  int64_t out_height, out_width;  ///< patches down and across
  int64_t sample_step, row_step;  ///< of the pictures; a pixel's channels, and a row's pixels, lie side by side
};

/// A matrix [height, width] of 8-bit numbers, as in ExpandCodes, of which a product takes the bf16 numbers.
struct Codes {
  Number type;
  int64_t width, block;
  const uint8_t *values;
  const float *scale;
  int64_t scale_step;
  bool turned;  ///< the product takes its transpose
};

/// c = factor a b + base for each of `batches` matrices, a [m, k], b [k, n]. fp32 and bf16 in any mixture, summed in
/// fp32 and rounded once, or all fp64. An element of c depends on its row, its column and k alone: neither on the
/// other rows nor on how the product is cut, and it is the same on every processor with fused multiply-adds.
struct Product {
  int64_t batches, m, n, k;
  Matrix a, b;
  double factor;
  Matrix base;  ///< of c's type, rows dense (or row_step 0: one row for all); may be c itself; null: nothing is added
  Dtype type;   ///< of c
  void *c;
  int64_t c_step, c_batch_step;
  int64_t tile_rows, tile_columns;   ///< of c that a unit computes (cpu.hpp: cut())
  const Patches *patches = nullptr;  ///< where given, a's rows are those of the pictures at a.data
  const Codes *codes = nullptr;      ///< where given, they are b; of one batch, and c is not fp64
};

/// Rows of attention heads, [samples, tokens, heads] of them, at any steps; a row is `width` elements.
template <typename Pointer>
struct Heads {
  Pointer data;
  int64_t sample, token, head;  ///< steps
};
using HeadsIn = Heads<const void *>;
using HeadsOut = Heads<void *>;

/// c [m, n], fp32, rows ldc apart, = a [m, k] b [k, n], added to what c holds if `add`. Rows of a are lda apart. b:
/// rows ldb apart; of bf16, where k is even, pairs of rows, the two elements of a column side by side.
using Multiply = void (*)(Dtype, int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, bool add,
                          const void *a, const void *b, float *c);

/// y = softmax(scale q k^T + mask) v for each head. fp32 or bf16 (with an even width, unless it is widened).
struct Attention {
  Dtype dtype;
  bool widened;  ///< bf16 is multiplied as fp32, for a processor without products of bf16
  int64_t samples, heads, queries, keys, width;
  double scale;
  HeadsIn q, k, v;
  Multiply multiply;
  HeadsIn mask{};       ///< of the dtype, a row of `keys` for each query; null: none. Forward alone, as is `causal`:
  bool causal = false;  ///< a query sees the keys up to its own place
};

}  // namespace trainer::kernels
