/// @file The fused kernels on the CPU. Each works on a range of rows (or of other independent units), so that the
/// caller decides about threads; a unit's result does not depend on the range it is in. Called by the SDK's operators.
#pragma once

#include <kernels/fused.h>

#include <string_view>
#include <vector>

namespace trainer::kernels {

/// What an attention's backward reads and writes beside the attention's own inputs.
struct AttentionGrad {
  HeadsIn grad, y, log_sums;
  HeadsOut q, k, v;
};

/// One implementation, compiled for several instruction sets.
struct CpuKernels {
  const char* level;  ///< "baseline", "x86-64-v3" (AVX2) or "x86-64-v4" (AVX-512)

  /// y [rows, width].
  void (*modulated_norm)(const ModulatedNorm&, void* y, int64_t begin, int64_t end);
  /// grad_x from grad, both [rows, width]. `moments` [rows, 2] receives mean and 1 / deviation when not null, in fp32
  /// (fp64 for fp64).
  void (*modulated_norm_grad)(const ModulatedNorm&, const void* grad, void* grad_x, void* moments, int64_t begin,
                              int64_t end);
  /// Gradients of shift and scale, each [samples, width] dense or null; units are samples x kColumns columns.
  void (*modulated_norm_sums)(const ModulatedNorm&, const void* grad, const void* moments, void* grad_shift,
                              void* grad_scale, int64_t begin, int64_t end);

  /// Units are tokens of all samples.
  void (*norm_rope)(const NormRope&, void* y, int64_t begin, int64_t end);
  /// grad_x [samples, tokens, heads, width] dense.
  void (*norm_rope_grad)(const NormRope&, const void* grad, void* grad_x, int64_t begin, int64_t end);
  /// Gradient of the weight: partial sums [units, width] in fp32 (fp64), a unit being kTokens tokens of all samples.
  void (*norm_rope_sums)(const NormRope&, const void* grad, void* partial, int64_t begin, int64_t end);

  /// y [rows, before_width + width] dense.
  void (*swiglu)(const SwiGlu&, void* y, int64_t begin, int64_t end);
  /// grad: of the silu(gate) up part, rows grad_step apart; grad_x [rows, 2 width] dense.
  void (*swiglu_grad)(const SwiGlu&, const void* grad, int64_t grad_step, void* grad_x, int64_t begin, int64_t end);

  /// to [rows, width] = x + gate y.
  void (*gated_residual)(const GatedResidual&, void* to, int64_t begin, int64_t end);
  /// grad_y = grad gate, all [rows, width].
  void (*gated_residual_grad)(const GatedResidual&, const void* grad, void* grad_y, int64_t begin, int64_t end);
  /// Gradient of the gate, [samples, width] dense: the sums of grad y; units are samples x kColumns columns.
  void (*gated_residual_sums)(const GatedResidual&, const void* grad, void* grad_gate, int64_t begin, int64_t end);

  /// Units are product_units(); `buffer`: product_bytes(), on 64 bytes.
  void (*product)(const Product&, void* buffer, int64_t begin, int64_t end);

  /// y and the logarithms of the sums, fp32, one a row; attention_units(). `buffer`: attention_bytes().
  void (*attention)(const Attention&, HeadsOut y, HeadsOut log_sums, void* buffer, int64_t begin, int64_t end);
  /// Gradients of q, k and v; units are heads of all samples. `buffer`: attention_grad_bytes().
  void (*attention_grad)(const Attention&, const AttentionGrad&, void* buffer, int64_t begin, int64_t end);
};

/// Tiles of queries, of all heads.
int64_t attention_units(const Attention&);
/// What a thread needs of memory, on 64 bytes, for attentions of these sizes.
int64_t attention_bytes(const Attention&);
int64_t attention_grad_bytes(const Attention&);

/// Sets the tiles of a product that so many threads share. They change no bit of the result.
void cut(Product&, int64_t threads);
int64_t product_units(const Product&);
/// What a thread needs of memory; the same at every level.
int64_t product_bytes(const Product&);

constexpr int64_t kColumns = 64;  ///< of a unit of modulated_norm_sums and gated_residual_sums
constexpr int64_t kTokens = 64;   ///< of a unit of norm_rope_sums

/// Those that this processor runs, the best last.
const std::vector<const CpuKernels*>& cpu_levels();
/// The one of that name, the best for an empty one. Throws std::invalid_argument where this processor has none such.
const CpuKernels& cpu_level(std::string_view name);
/// The one that is used: that which the environment variable TRAINER_CPU_LEVEL names, or the best. Throws as above; a
/// program asks for it before it starts.
const CpuKernels& cpu_kernels();

}  // namespace trainer::kernels
