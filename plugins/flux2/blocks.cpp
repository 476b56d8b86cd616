/// @file Follows diffusers' Flux2TransformerBlock and Flux2SingleTransformerBlock operation by operation.
#include "blocks.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>

#include "embedding.hpp"

namespace trainer::flux2 {
namespace {

/// Raw modulation [B, n d] -> n tensors [B, 1, d].
std::vector<at::Tensor> split_modulation(const at::Tensor& raw, int64_t parts) {
  return raw.unsqueeze(1).chunk(parts, -1);
}

/// Normalised queries or keys: [B, S, H D] -> [B, S, H, D].
at::Tensor normalised(const at::Tensor& x, int64_t heads, const Parameter& weight, double eps) {
  const at::Tensor split = x.unflatten(-1, {heads, -1});
  return at::rms_norm(split, {split.size(-1)}, weight.get(x.scalar_type()), eps);
}

/// q, k (normalised, not yet turned) and v, each [B, S, H, D] -> [B, S, H D].
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& rope) {
  // The transposes are views, and the kernel answers in the order of its inputs: nothing is copied.
  const at::Tensor attended = at::scaled_dot_product_attention(Rope::apply(q, rope).transpose(1, 2),
                                                               Rope::apply(k, rope).transpose(1, 2), v.transpose(1, 2));
  return attended.transpose(1, 2).flatten(2);
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) { return at::silu(gate) * up; }

/// fp16 overflows where diffusers clips it; other types pass.
at::Tensor clip_half(const at::Tensor& x) { return x.scalar_type() == at::kHalf ? at::clamp(x, -65504, 65504) : x; }

}  // namespace

at::Tensor modulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, double eps) {
  return at::addcmul(shift, at::layer_norm(x, {x.size(-1)}, {}, {}, eps), scale + 1);
}

DoubleBlock::DoubleBlock(ModelBuilder& build, const Config& config, int64_t index)
    : Block("double." + std::to_string(index), "double"), eps_(config.eps), heads_(config.heads) {
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
  const at::Tensor img_in = modulate(img, img_mod[0], img_mod[1], eps_);
  const at::Tensor txt_in = modulate(txt, txt_mod[0], txt_mod[1], eps_);
  const at::Tensor q = at::cat(
      {normalised(txt_.q(txt_in), heads_, *txt_.norm_q, eps_), normalised(img_.q(img_in), heads_, *img_.norm_q, eps_)},
      1);
  const at::Tensor k = at::cat(
      {normalised(txt_.k(txt_in), heads_, *txt_.norm_k, eps_), normalised(img_.k(img_in), heads_, *img_.norm_k, eps_)},
      1);
  const at::Tensor v = at::cat({txt_.v(txt_in), img_.v(img_in)}, 1).unflatten(-1, {heads_, -1});
  const std::vector<at::Tensor> attended =
      attention(q, k, v, flow.shared[kRope]).split_with_sizes({txt.size(1), img.size(1)}, 1);
  return {finish(img_, img, attended[1], img_mod), clip_half(finish(txt_, txt, attended[0], txt_mod))};
}

at::Tensor DoubleBlock::finish(const Stream& stream, const at::Tensor& x, const at::Tensor& attended,
                               const std::vector<at::Tensor>& mod) const {
  const at::Tensor middle = at::addcmul(x, mod[2], stream.out(attended));
  const std::vector<at::Tensor> halves = stream.mlp_in(modulate(middle, mod[3], mod[4], eps_)).chunk(2, -1);
  return at::addcmul(middle, mod[5], stream.mlp_out(swiglu(halves[0], halves[1])));
}

SingleBlock::SingleBlock(ModelBuilder& build, const Config& c, int64_t index)
    : Block("single." + std::to_string(index), "single"),
      eps_(c.eps),
      heads_(c.heads),
      hidden_(c.hidden()),
      mlp_hidden_(c.mlp_hidden) {
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
  const std::vector<at::Tensor> parts =
      in_(modulate(x, mod[0], mod[1], eps_))
          .split_with_sizes({hidden_, hidden_, hidden_, mlp_hidden_, mlp_hidden_}, -1);
  const at::Tensor attended =
      attention(normalised(parts[0], heads_, *norm_q_, eps_), normalised(parts[1], heads_, *norm_k_, eps_),
                parts[2].unflatten(-1, {heads_, -1}), flow.shared[kRope]);
  const at::Tensor y = out_(at::cat({attended, swiglu(parts[3], parts[4])}, -1));
  return {clip_half(at::addcmul(x, mod[2], y))};
}

}  // namespace trainer::flux2
