// What the library of CUDA kernels exports.
#include <kernels/cuda/launches.hpp>

namespace trainer::kernels {
namespace {

const CudaKernels kTable{cuda_modulated_norm,
                         cuda_modulated_norm_grad,
                         cuda_modulated_norm_sums,
                         cuda_norm_rope,
                         cuda_norm_rope_grad,
                         cuda_norm_rope_sums,
                         cuda_swiglu,
                         cuda_swiglu_grad,
                         cuda_gated_residual,
                         cuda_gated_residual_grad,
                         cuda_gated_residual_sums,
                         cuda_bf16_parts,
                         cuda_quantize_rows,
                         cuda_scale_sums,
                         cuda_expand_codes,
                         cuda_transpose_bytes};

}  // namespace
}  // namespace trainer::kernels

extern "C" __attribute__((visibility("default"))) const trainer::kernels::CudaKernels* trainer_cuda_kernels_1(
    int layout) {
  return layout == trainer::kernels::kArgumentsLayout ? &trainer::kernels::kTable : nullptr;
}
