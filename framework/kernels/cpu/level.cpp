/// @file The CPU kernels for one instruction set: compiled once for each, see meson.build. Everything but the table has
/// internal linkage, so that no function made for a newer processor is linked into code for older ones.
#include <kernels/cpu/attention.hpp>
#include <kernels/cpu/gated_residual.hpp>
#include <kernels/cpu/modulated_norm.hpp>
#include <kernels/cpu/norm_rope.hpp>
#include <kernels/cpu/product.hpp>
#include <kernels/cpu/swiglu.hpp>

namespace trainer::kernels {
namespace {

/// body(element) with an element of the type, for the type alone.
template <typename Body>
TRAINER_INLINE void with_type(Dtype dtype, const Body& body) {
  if (dtype == Dtype::f32) body(float{});
  if (dtype == Dtype::bf16) body(Bf16{});
  if (dtype == Dtype::f64) body(double{});
}

void modulated_norm(const ModulatedNorm& a, void* y, int64_t begin, int64_t end) {
  with_type(a.dtype, [&](auto type) { NormRows<decltype(type)>::forward(a, y, begin, end); });
}
void modulated_norm_grad(const ModulatedNorm& a, const void* grad, void* grad_x, void* moments, int64_t begin,
                         int64_t end) {
  with_type(a.dtype, [&](auto type) { NormRows<decltype(type)>::grad(a, grad, grad_x, moments, begin, end); });
}
void modulated_norm_sums(const ModulatedNorm& a, const void* grad, const void* moments, void* grad_shift,
                         void* grad_scale, int64_t begin, int64_t end) {
  with_type(a.dtype,
            [&](auto type) { NormRows<decltype(type)>::sums(a, grad, moments, grad_shift, grad_scale, begin, end); });
}
void norm_rope(const NormRope& a, void* y, int64_t begin, int64_t end) {
  with_type(a.dtype, [&](auto type) { HeadRows<decltype(type)>::forward(a, y, begin, end); });
}
void norm_rope_grad(const NormRope& a, const void* grad, void* grad_x, int64_t begin, int64_t end) {
  with_type(a.dtype, [&](auto type) { HeadRows<decltype(type)>::grad(a, grad, grad_x, begin, end); });
}
void norm_rope_sums(const NormRope& a, const void* grad, void* partial, int64_t begin, int64_t end) {
  with_type(a.dtype, [&](auto type) { HeadRows<decltype(type)>::sums(a, grad, partial, begin, end); });
}
void swiglu(const SwiGlu& a, void* y, int64_t begin, int64_t end) {
  with_type(a.dtype, [&](auto type) { GateRows<decltype(type)>::forward(a, y, begin, end); });
}
void swiglu_grad(const SwiGlu& a, const void* grad, int64_t grad_step, void* grad_x, int64_t begin, int64_t end) {
  with_type(a.dtype, [&](auto type) { GateRows<decltype(type)>::grad(a, grad, grad_step, grad_x, begin, end); });
}

void gated_residual(const GatedResidual& a, void* to, int64_t begin, int64_t end) {
  with_type(a.dtype, [&](auto type) { GatedRows<decltype(type)>::forward(a, to, begin, end); });
}
void gated_residual_grad(const GatedResidual& a, const void* grad, void* grad_y, int64_t begin, int64_t end) {
  with_type(a.dtype, [&](auto type) { GatedRows<decltype(type)>::grad(a, grad, grad_y, begin, end); });
}
void gated_residual_sums(const GatedResidual& a, const void* grad, void* grad_gate, int64_t begin, int64_t end) {
  with_type(a.dtype, [&](auto type) { GatedRows<decltype(type)>::sums(a, grad, grad_gate, begin, end); });
}

void product(const Product& p, void* buffer, int64_t begin, int64_t end) {
  if (p.type == Dtype::f64)
    Products<double>::run(p, buffer, begin, end);
  else
    Products<float>::run(p, buffer, begin, end);
}

template <typename Body>
TRAINER_INLINE void with_heads(const Attention& a, const Body& body) {
  if (a.dtype == Dtype::f32) body(AttentionHeads<float>{});
  if (a.dtype == Dtype::bf16 && !a.widened) body(AttentionHeads<Bf16>{});
  if (a.dtype == Dtype::bf16 && a.widened) body(AttentionHeads<Bf16, float>{});
}
void attention(const Attention& a, HeadsOut y, HeadsOut log_sums, void* buffer, int64_t begin, int64_t end) {
  with_heads(a, [&](auto heads) { heads.forward(a, y, log_sums, buffer, begin, end); });
}
void attention_grad(const Attention& a, const AttentionGrad& g, void* buffer, int64_t begin, int64_t end) {
  with_heads(a, [&](auto heads) { heads.backward(a, g, buffer, begin, end); });
}

}  // namespace

extern const CpuKernels TRAINER_LEVEL_TABLE;
const CpuKernels TRAINER_LEVEL_TABLE{TRAINER_LEVEL_NAME, modulated_norm, modulated_norm_grad, modulated_norm_sums,
                                     norm_rope,          norm_rope_grad, norm_rope_sums,      swiglu,
                                     swiglu_grad,        gated_residual, gated_residual_grad, gated_residual_sums,
                                     product,            attention,      attention_grad};

}  // namespace trainer::kernels
