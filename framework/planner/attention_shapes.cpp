/// @file After ATen's native/transformers/attention.cpp and native/cpu/FlashAttentionKernel.cpp: outputs, gradients and
/// the buffers of each thread; where `matmul` has a kernel of its own in its place, after that. Memory-efficient
/// kernels of GPUs keep the same: output and log-sum-exp.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>
#include <matmul/attention.hpp>
#include <planner/attention_shapes.hpp>

#include <algorithm>
#include <tuple>

namespace trainer::planner {
namespace {

using at::Tensor;
using Mask = std::optional<Tensor>;

bool rows_are_dense(const Tensor& tensor) { return tensor.stride(-1) == 1; }

/// When the CPU takes its flash kernel (sdp_utils_cpp.cpp, use_flash_attention_cpp); otherwise attention is composed.
bool takes_flash(const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask, double dropout) {
  for (const Tensor* tensor : {&q, &k, &v})
    if (tensor->dim() != 4 || tensor->numel() == 0 || !rows_are_dense(*tensor)) return false;
  const bool same_heads = q.size(0) == k.size(0) && q.size(1) == k.size(1) && k.size(0) == v.size(0) &&
                          k.size(1) == v.size(1) && q.size(-1) == k.size(-1) && k.size(-1) == v.size(-1);
  const bool trained_mask = mask.has_value() && mask->defined() && mask->requires_grad();
  return same_heads && dropout == 0 && !trained_mask;
}

/// In place of the composite, which on meta tensors asks no backend and composes attention always.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask, double dropout, bool causal,
                 std::optional<double> scale, bool grouped) {
  if (!takes_flash(q, k, v, mask, dropout))
    return std::get<0>(
        at::_scaled_dot_product_attention_math(q, k, v, mask, dropout, causal, /*dropout_mask=*/{}, scale, grouped));
  Mask numbers = mask;
  if (mask.has_value() && mask->defined() && mask->scalar_type() == at::kBool)
    numbers = at::empty(mask->sizes(), q.options().requires_grad(false));
  return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, numbers, scale));
}

/// Queries and keys a thread works on at a time.
struct Tile {
  Tile(int64_t queries, int64_t keys)
      : rows(std::min<int64_t>(queries >= 768   ? 256
                               : queries >= 192 ? 64
                                                : 32,
                               queries)),
        columns(std::min<int64_t>(512, keys)) {}
  int64_t rows, columns;
};

bool is_half(const Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf;
}

at::TensorOptions accumulator(const Tensor& tensor) {
  return tensor.options().dtype(is_half(tensor) ? at::kFloat : tensor.scalar_type());
}

/// q, k, v [B, H, S, D] -> output [B, H, S, D] and log-sum-exp [B, H, S], both laid out as [B, S, H, ...].
std::tuple<Tensor, Tensor> flash(const Tensor& q, const Tensor& k, const Tensor& v, double dropout, bool causal,
                                 const Mask& mask, std::optional<double> scale) {
  const matmul::AttentionOptions options{dropout, causal, mask, scale};
  if (matmul::takes_attention(q, k, v, options)) return matmul::attention(q, k, v, options);
  const int64_t batch = q.size(0), heads = q.size(1), queries = q.size(2), width = q.size(3);
  Tensor output = at::empty({batch, queries, heads, width}, q.options());
  Tensor log_sum = at::empty({batch, queries, heads}, accumulator(q));
  const Tile tile(queries, k.size(2));
  const int64_t threads = at::get_num_threads();
  const Tensor scores = at::empty({threads, tile.rows * (tile.columns + 2 + width)}, accumulator(q));
  const Tensor reduced = at::empty({threads, tile.rows, is_half(q) ? tile.columns : 0}, q.options());
  return {output.transpose(1, 2), log_sum.transpose(1, 2)};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                                                  const Tensor& output, const Tensor& log_sums, double dropout,
                                                  bool causal, const Mask& mask, std::optional<double> scale) {
  if (matmul::takes_attention_grad(q, k, v, {dropout, causal, mask, scale}))
    return matmul::attention_grad(grad, q, k, v, output, log_sums, scale);
  const auto like = [](const Tensor& tensor) {
    return at::empty({tensor.size(0), tensor.size(2), tensor.size(1), tensor.size(3)}, tensor.options());
  };
  const Tensor grad_q = like(q), grad_k = like(k), grad_v = like(v);
  const Tensor dense_grad = grad.transpose(1, 2).contiguous();
  const Tile tile(q.size(2), k.size(2));
  const int64_t threads = at::get_num_threads(), scores = 2 * tile.rows * tile.columns;
  const Tensor buffer = at::empty({threads, scores}, accumulator(q));
  const Tensor reduced = at::empty({threads, is_half(q) ? scores : 0}, q.options());
  const Tensor row_sums = at::empty({threads, tile.rows}, accumulator(q));
  return {grad_q.transpose(1, 2), grad_k.transpose(1, 2), grad_v.transpose(1, 2)};
}

}  // namespace

void add_attention_shapes(torch::Library& library) {
  library.impl("scaled_dot_product_attention", torch::dispatch(c10::DispatchKey::AutogradMeta, &attention));
  library.impl("scaled_dot_product_attention", torch::dispatch(c10::DispatchKey::Meta, &attention));
  library.impl("_scaled_dot_product_flash_attention_for_cpu", torch::dispatch(c10::DispatchKey::Meta, &flash));
  library.impl("_scaled_dot_product_flash_attention_for_cpu_backward",
               torch::dispatch(c10::DispatchKey::Meta, &flash_backward));
}

}  // namespace trainer::planner
