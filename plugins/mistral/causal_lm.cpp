/// @file The decoder layers.
#include "causal_lm.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <trainer/sdk/error.hpp>

#include <cmath>
#include <utility>

#include "tensor_names.hpp"

namespace trainer::mistral {

namespace {

/// Normalised in fp32, cast, then scaled in the compute dtype: the order transformers uses.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor mean = wide.pow(2).mean({-1}, /*keepdim=*/true);
  return weight * (wide * at::rsqrt(mean + eps)).to(x.scalar_type());
}

at::Tensor project(const at::Tensor& x, const at::Tensor& weight) { return at::mm(x, weight.t()); }

/// Each key/value head serves a run of neighbouring query heads: [kv, n, d] -> [heads, n, d].
at::Tensor repeat_heads(const at::Tensor& x, int64_t heads) {
  const int64_t times = heads / x.size(0);
  if (times == 1) return x;
  return x.unsqueeze(1).expand({x.size(0), times, x.size(1), x.size(2)}).reshape({heads, x.size(1), x.size(2)});
}

}  // namespace

struct CausalLm::Layer {
  at::Tensor input_norm, q, k, v, o, post_norm, gate, up, down, q_norm, k_norm;
};

CausalLm::CausalLm(const LmConfig& config, std::shared_ptr<WeightSource> source, int64_t layers, int64_t positions,
                   at::ScalarType dtype, at::Device device)
    : config_(config),
      source_(std::move(source)),
      prefix_(find_tensors(*source_, config_, layers)),
      dtype_(dtype),
      device_(device) {
  // Angles in fp32 with the operations of the reference, whatever the compute dtype and device.
  const at::Tensor exponents = at::arange(0, config_.head_dim, 2, at::kFloat) / static_cast<double>(config_.head_dim);
  const at::Tensor inverse = 1.0 / at::pow(at::Scalar(config_.rope_theta), exponents);
  const at::Tensor half = at::outer(at::arange(positions, at::kFloat), inverse);
  const at::Tensor angles = at::cat({half, half}, -1).unsqueeze(1);
  cos_ = angles.cos().to(device_, dtype_);
  sin_ = angles.sin().to(device_, dtype_);
}

at::Tensor CausalLm::embeddings(std::span<const int64_t> ids) const {
  const std::string name = prefix_ + "embed_tokens.weight";
  std::vector<at::Tensor> parts;
  for (std::size_t begin = 0, end = 0; begin < ids.size(); begin = end) {
    for (end = begin + 1; end < ids.size() && ids[end] == ids[end - 1] + 1;) ++end;
    if (ids[begin] < 0 || ids[end - 1] >= config_.vocab)
      throw Error(ExitCode::bad_input, "the tokenizer gave token id " +
                                           std::to_string(ids[ids[begin] < 0 ? begin : end - 1]) +
                                           ", but the text encoder knows " + std::to_string(config_.vocab) +
                                           " tokens; tokenizer and text encoder do not belong together");
    parts.push_back(source_->read_rows(name, ids[begin], ids[end - 1] + 1).to(dtype_));
  }
  return at::cat(parts).to(device_);
}

CausalLm::Layer CausalLm::read_layer(int64_t layer) const {
  const auto read = [&](const char* name) {
    return source_->read(prefix_ + "layers." + std::to_string(layer) + "." + name).to(device_, dtype_);
  };
  Layer w;
  w.input_norm = read("input_layernorm.weight");
  w.q = read("self_attn.q_proj.weight");
  w.k = read("self_attn.k_proj.weight");
  w.v = read("self_attn.v_proj.weight");
  w.o = read("self_attn.o_proj.weight");
  w.post_norm = read("post_attention_layernorm.weight");
  w.gate = read("mlp.gate_proj.weight");
  w.up = read("mlp.up_proj.weight");
  w.down = read("mlp.down_proj.weight");
  if (config_.qk_norm()) {
    w.q_norm = read("self_attn.q_norm.weight");
    w.k_norm = read("self_attn.k_norm.weight");
  }
  return w;
}

void CausalLm::run_layer(int64_t layer, std::span<Rows> groups) const {
  const Layer w = read_layer(layer);
  for (Rows& group : groups) {
    const at::Tensor attended = attention(w, rms_norm(group.states, w.input_norm, config_.eps), group.spans);
    const at::Tensor middle = group.states + project(attended, w.o);
    const at::Tensor x = rms_norm(middle, w.post_norm, config_.eps);
    group.states = middle + project(at::silu(project(x, w.gate)) * project(x, w.up), w.down);
  }
}

at::Tensor CausalLm::attention(const Layer& w, const at::Tensor& x, const std::vector<Span>& spans) const {
  const auto heads = [&](const at::Tensor& weight) {
    return project(x, weight).view({x.size(0), -1, config_.head_dim});
  };
  at::Tensor q = heads(w.q), k = heads(w.k);
  if (config_.qk_norm()) {
    q = rms_norm(q, w.q_norm, config_.eps);
    k = rms_norm(k, w.k_norm, config_.eps);
  }
  q = rotate(q, spans);
  k = rotate(k, spans);
  const at::Tensor v = heads(w.v);
  std::vector<at::Tensor> parts;
  for (const Span& span : spans) {
    const auto rows = [&](const at::Tensor& t, int64_t count) {
      return t.narrow(0, span.begin, count).transpose(0, 1);
    };
    parts.push_back(attend(rows(q, span.rows), rows(k, span.keys), rows(v, span.keys), span));
  }
  return at::cat(parts);
}

/// q [heads, rows, d], k and v [kv heads, keys, d] -> [rows, heads * d].
at::Tensor CausalLm::attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Span& span) const {
  const int64_t width = config_.heads * config_.head_dim;
  if (span.keys == 0) return at::zeros({span.rows, width}, q.options());
  const bool square = span.rows == span.keys;
  std::optional<at::Tensor> mask;
  if (!square) mask = at::ones({span.rows, span.keys}, q.options().dtype(at::kBool)).tril();
  const at::Tensor out = at::scaled_dot_product_attention(
      q.unsqueeze(0), repeat_heads(k, config_.heads).unsqueeze(0), repeat_heads(v, config_.heads).unsqueeze(0), mask,
      /*dropout_p=*/0.0, /*is_causal=*/square, 1.0 / std::sqrt(static_cast<double>(config_.head_dim)));
  return out.squeeze(0).transpose(0, 1).reshape({span.rows, width});
}

/// Rotary embedding of x [rows, heads, d]: the first half of a head is paired with its second half.
at::Tensor CausalLm::rotate(const at::Tensor& x, const std::vector<Span>& spans) const {
  std::vector<at::Tensor> cos, sin;
  for (const Span& span : spans) {
    cos.push_back(cos_.narrow(0, span.first_position, span.rows));
    sin.push_back(sin_.narrow(0, span.first_position, span.rows));
  }
  const std::vector<at::Tensor> halves = x.chunk(2, -1);
  return x * at::cat(cos) + at::cat({-halves[1], halves[0]}, -1) * at::cat(sin);
}

}  // namespace trainer::mistral
