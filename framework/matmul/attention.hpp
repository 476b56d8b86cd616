/// @file Attention on the CPU by oneDNN's small products. LibTorch's kernel makes a primitive for each small product of
/// bf16, and its bits depend on the threads of MKL. Measured and why: docs/adr/0009-attention-on-the-cpu.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace torch {
class Library;
}

namespace trainer::matmul {

/// The arguments of LibTorch's _scaled_dot_product_flash_attention_for_cpu.
struct AttentionOptions {
  double dropout = 0;
  bool causal = false;
  std::optional<at::Tensor> mask;
  std::optional<double> scale;
};

/// Whether attention of such tensors [B, H, S, D] is computed here, without dropout, since use(): fp32, or bf16 with an
/// even D (any, where the processor has no products of bf16 and it is widened), if oneDNN has products of fp32 for this
/// processor. A function of shapes, dtype and that alone; asked of meta tensors, it answers for the CPU's.
bool takes_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& options);
/// The same of its gradients, which are computed without mask and causality alone.
bool takes_attention_grad(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionOptions& options);

/// Output [B, H, S, D] and log-sum-exp [B, H, S] in fp32, both laid out as [B, S, H, ...], as LibTorch's kernel gives
/// them. On meta tensors: what it allocates, buffers of each thread included. A head's result is the same with any
/// number of threads. A query that sees no key gets zeros.
std::tuple<at::Tensor, at::Tensor> attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                             const AttentionOptions& options);
/// Gradients of q, k and v, laid out as [B, S, H, D].
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_grad(const at::Tensor& grad, const at::Tensor& q,
                                                              const at::Tensor& k, const at::Tensor& v,
                                                              const at::Tensor& output, const at::Tensor& log_sums,
                                                              std::optional<double> scale);

/// Registers both over LibTorch's; what is not taken goes to LibTorch's as before.
void register_attention(torch::Library& library);

}  // namespace trainer::matmul
