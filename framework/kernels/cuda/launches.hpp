/// @file The functions behind the table that the CUDA library exports (kernels/cuda.hpp). Used within it.
#pragma once

#include <kernels/cuda.hpp>

namespace trainer::kernels {

constexpr int64_t kSumTokens = 64;  ///< kTokens of cpu.hpp: the partial sums of both have one shape

int cuda_modulated_norm(const ModulatedNorm*, void* y, Stream);
int cuda_modulated_norm_grad(const ModulatedNorm*, const void* grad, void* grad_x, void* moments, Stream);
int cuda_modulated_norm_sums(const ModulatedNorm*, const void* grad, const void* moments, void* grad_shift,
                             void* grad_scale, Stream);
int cuda_norm_rope(const NormRope*, void* y, Stream);
int cuda_norm_rope_grad(const NormRope*, const void* grad, void* grad_x, Stream);
int cuda_norm_rope_sums(const NormRope*, const void* grad, void* partial, Stream);
int cuda_swiglu(const SwiGlu*, void* y, Stream);
int cuda_swiglu_grad(const SwiGlu*, const void* grad, int64_t grad_step, void* grad_x, Stream);
int cuda_gated_residual(const GatedResidual*, void* to, Stream);
int cuda_gated_residual_grad(const GatedResidual*, const void* grad, void* grad_y, Stream);
int cuda_gated_residual_sums(const GatedResidual*, const void* grad, void* grad_gate, Stream);
int cuda_bf16_parts(const Bf16Parts*, Stream);
int cuda_quantize_rows(const QuantizeRows*, Stream);
int cuda_scale_sums(const ScaleSums*, Stream);
int cuda_expand_codes(const ExpandCodes*, Stream);
int cuda_transpose_bytes(const TransposeBytes*, Stream);

}  // namespace trainer::kernels
