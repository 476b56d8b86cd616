#include <matmul/attention.hpp>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_native.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>
#include <kernels/cpu.hpp>
#include <matmul/matmul.hpp>
#include <trainer/sdk/ops/products.hpp>

#include <array>
#include <cmath>

namespace at::native::cpublas {
// LibTorch exports them for its own kernels; c [m, n] (+)= a [m, k] b [k, n].
TORCH_API void brgemm(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, bool add, const float* a,
                      const float* b, float* c, bool paired);
TORCH_API void brgemm(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, bool add,
                      const at::BFloat16* a, const at::BFloat16* b, float* c, bool paired);
TORCH_API void brgemm_release(bool paired);
}  // namespace at::native::cpublas

namespace trainer::matmul {
namespace {

using at::Tensor;

void small_product(kernels::Dtype dtype, int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc,
                   bool add, const void* a, const void* b, float* c) {
  if (dtype == kernels::Dtype::f32)
    at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, static_cast<const float*>(a), static_cast<const float*>(b),
                                c, /*paired=*/false);
  else
    at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, static_cast<const at::BFloat16*>(a),
                                static_cast<const at::BFloat16*>(b), c, /*paired=*/true);
}

/// oneDNN has small products of fp32 on a processor with AVX2, where LibTorch may use it; elsewhere LibTorch's brgemm
/// falls back to MKL, whose bits depend on threads.
bool multiplies_floats() {
#if defined(__x86_64__)
  static const bool there =
      __builtin_cpu_supports("avx2") != 0 && at::get_cpu_capability() != "DEFAULT" && at::Context::hasMKLDNN();
  return there;
#else
  return false;
#endif
}

bool takes(at::ScalarType type, int64_t width) {
  if (!in_use() || !multiplies_floats()) return false;
  return type == at::kFloat || (type == at::kBFloat16 && (width % 2 == 0 || !has_bf16_products()));
}

bool is_given(const std::optional<Tensor>& mask) { return mask.has_value() && mask->defined(); }

/// What is added to scores: no trained numbers, of the queries' dtype, [queries, keys] or [B, H, queries, keys] or one
/// for all of B or H.
bool takes(const Tensor& mask, const Tensor& q, const Tensor& k) {
  if (mask.scalar_type() != q.scalar_type() || mask.requires_grad() || mask.stride(-1) != 1 ||
      (mask.dim() != 2 && mask.dim() != 4) || mask.size(-2) != q.size(2) || mask.size(-1) != k.size(2))
    return false;
  for (int64_t i = 0; i + 2 < mask.dim(); ++i)
    if (mask.size(i) != 1 && mask.size(i) != q.size(i)) return false;
  return true;
}

Tensor with_dense_rows(const Tensor& t) { return t.stride(-1) == 1 ? t : t.contiguous(); }

kernels::HeadsIn reads(const Tensor& t) {
  return {t.is_meta() ? nullptr : t.const_data_ptr(), t.stride(0), t.stride(2), t.stride(1)};
}
kernels::HeadsOut writes(const Tensor& t) {
  return {t.is_meta() ? nullptr : t.mutable_data_ptr(), t.stride(0), t.stride(2), t.stride(1)};
}

Tensor result_like(const Tensor& t) {
  return at::empty({t.size(0), t.size(2), t.size(1), t.size(3)}, t.options()).transpose(1, 2);
}

kernels::Attention arguments(const Tensor& q, const Tensor& k, const Tensor& v, std::optional<double> scale) {
  const bool wide = q.scalar_type() == at::kFloat;
  return {wide ? kernels::Dtype::f32 : kernels::Dtype::bf16,
          !wide && !has_bf16_products(),
          q.size(0),
          q.size(1),
          q.size(2),
          k.size(2),
          q.size(3),
          scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3)))),
          reads(q),
          reads(k),
          reads(v),
          &small_product};
}

kernels::HeadsIn mask_of(const std::optional<Tensor>& mask) {
  if (!is_given(mask)) return {};
  const auto step = [&](int64_t i) { return mask->dim() == 4 && mask->size(i) > 1 ? mask->stride(i) : 0; };
  return {mask->is_meta() ? nullptr : mask->const_data_ptr(), step(0), mask->stride(-2), step(1)};
}

/// body(buffer, begin, end) over [0, units), each thread with its own buffer.
template <typename Body>
void for_units(const kernels::Attention& a, int64_t units, const Tensor& buffers, const Body& body) {
  if (buffers.is_meta()) return;
  auto* const memory = static_cast<std::byte*>(buffers.mutable_data_ptr());
  at::parallel_for(0, units, 1, [&](int64_t begin, int64_t end) {
    body(memory + at::get_thread_num() * buffers.size(1), begin, end);
    at::native::cpublas::brgemm_release(a.dtype == kernels::Dtype::bf16 && !a.widened);
  });
}

Tensor buffers(const Tensor& q, int64_t bytes) {
  return at::empty({at::get_num_threads(), bytes}, q.options().dtype(at::kByte).requires_grad(false));
}

std::tuple<Tensor, Tensor> forward(const Tensor& q, const Tensor& k, const Tensor& v, double dropout, bool causal,
                                   const std::optional<Tensor>& mask, std::optional<double> scale) {
  const AttentionOptions options{dropout, causal, mask, scale};
  if (!takes_attention(q, k, v, options))
    return at::native::_scaled_dot_product_flash_attention_cpu(q, k, v, dropout, causal, mask, scale);
  return attention(q, k, v, options);
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                                            const Tensor& output, const Tensor& log_sums, double dropout, bool causal,
                                            const std::optional<Tensor>& mask, std::optional<double> scale) {
  if (!grad.defined() || !takes_attention_grad(q, k, v, {dropout, causal, mask, scale}))
    return at::native::_scaled_dot_product_flash_attention_cpu_backward(grad, q, k, v, output, log_sums, dropout,
                                                                        causal, mask, scale);
  return attention_grad(grad, q, k, v, output, log_sums, scale);
}

}  // namespace

bool takes_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  if (options.dropout != 0) return false;
  for (const Tensor* t : {&q, &k, &v})
    if (t->dim() != 4 || t->numel() == 0 || t->stride(-1) != 1 || t->scalar_type() != q.scalar_type() ||
        t->stride(2) < t->size(3))  // rows that overlap, as expanded ones do, are none of oneDNN's
      return false;
  const bool same_heads = q.size(0) == k.size(0) && q.size(1) == k.size(1) && q.size(3) == k.size(3);
  return same_heads && k.sizes() == v.sizes() && takes(q.scalar_type(), q.size(3)) &&
         (!is_given(options.mask) || takes(*options.mask, q, k));
}

bool takes_attention_grad(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  return !options.causal && !is_given(options.mask) && takes_attention(q, k, v, options);
}

std::tuple<Tensor, Tensor> attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                     const AttentionOptions& options) {
  const Tensor output = result_like(q);
  const Tensor log_sums = at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat)).transpose(1, 2);
  kernels::Attention a = arguments(q, k, v, options.scale);
  a.mask = mask_of(options.mask);
  a.causal = options.causal;
  for_units(a, kernels::attention_units(a), buffers(q, kernels::attention_bytes(a)),
            [&](void* buffer, int64_t begin, int64_t end) {
              kernels::cpu_kernels().attention(a, writes(output), writes(log_sums), buffer, begin, end);
            });
  return {output, log_sums};
}

std::tuple<Tensor, Tensor, Tensor> attention_grad(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                                                  const Tensor& output, const Tensor& log_sums,
                                                  std::optional<double> scale) {
  const Tensor dense_grad = with_dense_rows(grad), dense_output = with_dense_rows(output);
  const Tensor grad_q = result_like(q), grad_k = result_like(k), grad_v = result_like(v);
  const kernels::Attention a = arguments(q, k, v, scale);
  const kernels::AttentionGrad g{reads(dense_grad), reads(dense_output), reads(log_sums),
                                 writes(grad_q),    writes(grad_k),      writes(grad_v)};
  for_units(a, a.samples * a.heads, buffers(q, kernels::attention_grad_bytes(a)),
            [&](void* buffer, int64_t begin, int64_t end) {
              kernels::cpu_kernels().attention_grad(a, g, buffer, begin, end);
            });
  return {grad_q, grad_k, grad_v};
}

void register_attention(torch::Library& library) {
  library.impl("_scaled_dot_product_flash_attention_for_cpu", &forward);
  library.impl("_scaled_dot_product_flash_attention_for_cpu_backward", &backward);
}

}  // namespace trainer::matmul
