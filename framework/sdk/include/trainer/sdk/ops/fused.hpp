/// @file Operations that models make of several small ones, each in one pass over its data with a backward of its own
/// that keeps its inputs alone. On the CPU and on CUDA in fp32 and bf16 (fp64 on the CPU); what else comes takes the
/// plain operators of LibTorch, and so does everything when `fused` is false. The two agree to rounding; sums are
/// formed in fp32, and a result depends neither on threads nor on whether gradients are recorded.
#pragma once

#include <trainer/sdk/layers.hpp>

namespace trainer {

/// LayerNorm(x) (1 + scale) + shift, without affine weights. x [B, S, d]; shift, scale [B or 1, 1, d] of x's dtype.
/// Saves x and scale. diffusers: AdaLayerNorm of Flux2TransformerBlock.
TRAINER_API at::Tensor modulated_norm(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, double eps,
                                      bool fused = true);

/// Queries or keys of several streams for one attention: each x[i] [B, S_i, H, D] is normalised by its root mean square
/// and weights[i] [D], then, one behind the other, the adjacent pairs are turned by `table` [1 or B, sum of S_i, D/2,
/// 2] (cosine, sine; fp32, not differentiated). -> [B, sum of S_i, H, D]. Saves its inputs. diffusers: norm_q and
/// apply_rotary_emb of Flux2AttnProcessor.
TRAINER_API at::Tensor norm_rope(const std::vector<at::Tensor>& x, const std::vector<at::Tensor>& weights,
                                 const at::Tensor& table, double eps, bool fused = true);

/// silu(gate) up, where [gate, up] are the halves of x [..., 2 m], behind `before` [..., n] when it is defined.
/// -> [..., n + m]. Saves x. diffusers: Flux2SwiGLU, and the join of Flux2ParallelSelfAttnProcessor.
TRAINER_API at::Tensor swiglu(const at::Tensor& x, const at::Tensor& before = {}, bool fused = true);

/// x + gate y, rounded once. x, y [B, S, d]; gate [B or 1, 1, d], all of one dtype. Saves gate, and y where the gate is
/// trained. diffusers: hidden_states + gate_msa * attn_output of Flux2TransformerBlock.
TRAINER_API at::Tensor gated_residual(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y,
                                      bool fused = true);

/// y + scale (x A^T) B^T, rounded once: what a low-rank adapter makes of a layer's output y [M, out]. x [M, in] is the
/// layer's input; A [r, in] and B [out, r] are fp32 beside fp32 and bf16 data. Saves x, x A^T, A and B. peft:
/// lora.Linear with an fp32 adapter.
TRAINER_API at::Tensor low_rank_sum(const at::Tensor& x, const at::Tensor& y, const at::Tensor& a, const at::Tensor& b,
                                    double scale, bool fused = true);

/// x W^T + scale (x A^T) B^T of a frozen weight W, as low_rank_sum of its product, in one node: the adapter's part is
/// written over the product in forward, over the gradient through W in backward. x [M, in] -> [M, out] in x's dtype.
/// Saves x, which layers of one input share, x A^T, A, B and W's handle. `fused` false: two nodes of plain operators.
TRAINER_API at::Tensor low_rank_linear(const at::Tensor& x, const std::shared_ptr<FrozenWeight>& weight,
                                       const at::Tensor& a, const at::Tensor& b, double scale, bool fused = true);

}  // namespace trainer
