/// @file The fused kernels on CUDA, as a library of its own exports them (libtrainer_cuda_kernels.so). It is opened
/// when the first fused operation meets a CUDA tensor. `stream` is a cudaStream_t of the current device; the calls
/// return a cudaError_t of the launch and wait for nothing. fp32 and bf16; those for 8-bit numbers also fp16. No
/// atomics: results are the same every time.
#pragma once

#include <kernels/eight_bits.h>
#include <kernels/fused.h>

#include <cstddef>
#include <initializer_list>

namespace trainer::kernels {

using Stream = void*;

/// Units and meanings are those of CpuKernels; every call does all of them. The products of an adapter are cuBLAS's,
/// of parts that bf16_parts makes (sdk/src/fused/low_rank_parts.hpp).
struct CudaKernels {
  int (*modulated_norm)(const ModulatedNorm*, void* y, Stream);
  int (*modulated_norm_grad)(const ModulatedNorm*, const void* grad, void* grad_x, void* moments, Stream);
  int (*modulated_norm_sums)(const ModulatedNorm*, const void* grad, const void* moments, void* grad_shift,
                             void* grad_scale, Stream);
  int (*norm_rope)(const NormRope*, void* y, Stream);
  int (*norm_rope_grad)(const NormRope*, const void* grad, void* grad_x, Stream);
  int (*norm_rope_sums)(const NormRope*, const void* grad, void* partial, Stream);
  int (*swiglu)(const SwiGlu*, void* y, Stream);
  int (*swiglu_grad)(const SwiGlu*, const void* grad, int64_t grad_step, void* grad_x, Stream);
  int (*gated_residual)(const GatedResidual*, void* to, Stream);
  int (*gated_residual_grad)(const GatedResidual*, const void* grad, void* grad_y, Stream);
  int (*gated_residual_sums)(const GatedResidual*, const void* grad, void* grad_gate, Stream);
  int (*bf16_parts)(const Bf16Parts*, Stream);
  int (*quantize_rows)(const QuantizeRows*, Stream);
  int (*scale_sums)(const ScaleSums*, Stream);
  int (*expand_codes)(const ExpandCodes*, Stream);
  int (*transpose_bytes)(const TransposeBytes*, Stream);
};

/// What the library exports under that name: the table, for the layout of arguments that it was built with.
using CudaKernelsOf = const CudaKernels* (*)(int layout);
constexpr const char* kCudaKernelsSymbol = "trainer_cuda_kernels_1";
constexpr int layout_of(std::initializer_list<std::size_t> sizes) {
  unsigned layout = 0;
  for (const std::size_t size : sizes) layout = layout * 509 + static_cast<unsigned>(size);
  return static_cast<int>(layout % 0x7fffffff);
}
/// Other for other arguments and for another table.
constexpr int kArgumentsLayout = layout_of(
    {sizeof(ModulatedNorm), sizeof(NormRope), sizeof(SwiGlu), sizeof(GatedResidual), sizeof(Bf16Parts),
     sizeof(QuantizeRows), sizeof(ScaleSums), sizeof(ExpandCodes), sizeof(TransposeBytes), sizeof(CudaKernels)});

}  // namespace trainer::kernels
