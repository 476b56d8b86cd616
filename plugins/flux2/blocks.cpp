/// @file Follows diffusers' Flux2TransformerBlock and Flux2SingleTransformerBlock operation by operation.
#include "blocks.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <trainer/sdk/ops/fused.hpp>

namespace trainer::flux2 {
namespace {

/// Raw modulation [B, n d] -> n tensors [B, 1, d].
std::vector<at::Tensor> split_modulation(const at::Tensor& raw, int64_t parts) {
  return raw.unsqueeze(1).chunk(parts, -1);
}

/// Queries or keys by head: [B, S, H D] -> [B, S, H, D].
at::Tensor by_head(const at::Tensor& x, int64_t heads) { return x.unflatten(-1, {heads, -1}); }

/// q, k (normalised and turned) and v, each [B, S, H, D] -> [B, S, H D].
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  // The transposes are views, and the kernel answers in the order of its inputs: nothing is copied.
  const at::Tensor attended = at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2));
  return attended.transpose(1, 2).flatten(2);
}

/// fp16 overflows where diffusers clips it; other types pass.
at::Tensor clip_half(const at::Tensor& x) { return x.scalar_type() == at::kHalf ? at::clamp(x, -65504, 65504) : x; }

}  // namespace

DoubleBlock::DoubleBlock(ModelBuilder& build, const Config& config, int64_t index)
    : Block("double." + std::to_string(index), "double"), eps_(config.eps), heads_(config.heads), fused_(config.fused) {
  const std::string name = "transformer_blocks." + std::to_string(index) + ".";
  img_ = stream(build, config, name, false);
  txt_ = stream(build, config, name, true);
  // A token is either of the picture or of the text, and the two streams have layers of the same sizes.
  double flops = 0;
  for (const Linear& linear : info().linears)
    flops += 2.0 * static_cast<double>(linear.state().in) * static_cast<double>(linear.state().out);
  set_flops_per_token(flops / 2);
}

DoubleBlock::Stream DoubleBlock::stream(ModelBuilder& build, const Config& c, const std::string& name, bool text) {
  const int64_t d = c.hidden();
  const auto square = [&](const char* layer) { return own(build.linear(name + "attn." + layer, d, d)); };
  const auto norm = [&](const char* layer) {
    return own(build.parameter(name + "attn." + layer + ".weight", {c.head_dim}));
  };
  const std::string mlp = name + (text ? "ff_context." : "ff.");
  Stream s;
  s.q = square(text ? "add_q_proj" : "to_q");
  s.k = square(text ? "add_k_proj" : "to_k");
  s.v = square(text ? "add_v_proj" : "to_v");
  s.norm_q = norm(text ? "norm_added_q" : "norm_q");
  s.norm_k = norm(text ? "norm_added_k" : "norm_k");
  s.out = square(text ? "to_add_out" : "to_out.0");
  s.mlp_in = own(build.linear(mlp + "linear_in", d, 2 * c.mlp_hidden));
  s.mlp_out = own(build.linear(mlp + "linear_out", c.mlp_hidden, d));
  return s;
}

std::vector<at::Tensor> DoubleBlock::forward(const Flow& flow) {
  const at::Tensor &img = flow.carried.at(0), &txt = flow.carried.at(1);
  const std::vector<at::Tensor> img_mod = split_modulation(flow.shared[kModImg], 6);
  const std::vector<at::Tensor> txt_mod = split_modulation(flow.shared[kModTxt], 6);
  const at::Tensor img_in = modulated_norm(img, img_mod[0], img_mod[1], eps_, fused_);
  const at::Tensor txt_in = modulated_norm(txt, txt_mod[0], txt_mod[1], eps_, fused_);
  const at::Tensor& rope = flow.shared[kRope];
  const auto both = [&](Linear Stream::*layer, ParameterPtr Stream::*norm) {
    const at::Tensor text = (txt_.*layer)(txt_in), image = (img_.*layer)(img_in);
    return norm_rope({by_head(text, heads_), by_head(image, heads_)},
                     {(txt_.*norm)->get(text.scalar_type()), (img_.*norm)->get(image.scalar_type())}, rope, eps_,
                     fused_);
  };
  const at::Tensor q = both(&Stream::q, &Stream::norm_q);
  const at::Tensor k = both(&Stream::k, &Stream::norm_k);
  const at::Tensor v = by_head(at::cat({txt_.v(txt_in), img_.v(img_in)}, 1), heads_);
  const std::vector<at::Tensor> attended = attention(q, k, v).split_with_sizes({txt.size(1), img.size(1)}, 1);
  return {finish(img_, img, attended[1], img_mod), clip_half(finish(txt_, txt, attended[0], txt_mod))};
}

at::Tensor DoubleBlock::finish(const Stream& stream, const at::Tensor& x, const at::Tensor& attended,
                               const std::vector<at::Tensor>& mod) const {
  const at::Tensor middle = gated_residual(x, mod[2], stream.out(attended), fused_);
  const at::Tensor inner = stream.mlp_in(modulated_norm(middle, mod[3], mod[4], eps_, fused_));
  return gated_residual(middle, mod[5], stream.mlp_out(swiglu(inner, {}, fused_)), fused_);
}

SingleBlock::SingleBlock(ModelBuilder& build, const Config& c, int64_t index)
    : Block("single." + std::to_string(index), "single"),
      eps_(c.eps),
      heads_(c.heads),
      hidden_(c.hidden()),
      mlp_hidden_(c.mlp_hidden),
      fused_(c.fused) {
  const std::string name = "single_transformer_blocks." + std::to_string(index) + ".attn.";
  in_ = own(build.linear(name + "to_qkv_mlp_proj", hidden_, 3 * hidden_ + 2 * mlp_hidden_));
  norm_q_ = own(build.parameter(name + "norm_q.weight", {c.head_dim}));
  norm_k_ = own(build.parameter(name + "norm_k.weight", {c.head_dim}));
  out_ = own(build.linear(name + "to_out", hidden_ + mlp_hidden_, hidden_));
}

std::vector<at::Tensor> SingleBlock::forward(const Flow& flow) {
  const at::Tensor x = flow.carried.size() == 2 ? at::cat({flow.carried[1], flow.carried[0]}, 1) : flow.carried.at(0);
  const std::vector<at::Tensor> mod = split_modulation(flow.shared[kModSingle], 3);
  // One split instead of slices: its backward is one concatenation, not a zero-filled tensor for every part.
  const std::vector<at::Tensor> parts = in_(modulated_norm(x, mod[0], mod[1], eps_, fused_))
                                            .split_with_sizes({hidden_, hidden_, hidden_, 2 * mlp_hidden_}, -1);
  const auto turned = [&](const at::Tensor& heads, const Parameter& norm) {
    return norm_rope({by_head(heads, heads_)}, {norm.get(heads.scalar_type())}, flow.shared[kRope], eps_, fused_);
  };
  const at::Tensor q = turned(parts[0], *norm_q_), k = turned(parts[1], *norm_k_);
  const at::Tensor attended = attention(q, k, by_head(parts[2], heads_));
  const at::Tensor y = out_(swiglu(parts[3], attended, fused_));
  return {clip_half(gated_residual(x, mod[2], y, fused_))};
}

}  // namespace trainer::flux2
