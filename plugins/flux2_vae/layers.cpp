#include "layers.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <trainer/sdk/ops/products.hpp>

namespace trainer::flux2_vae {
namespace {

constexpr double kGroupNormEps = 1e-6;

std::string numbered(const std::string& stem, int64_t index) { return stem + std::to_string(index); }

AttentionBlock::Projection projection(TensorSupply& supply, const std::string& name, int64_t channels) {
  return {supply.tensor(name + ".weight", {channels, channels}), supply.tensor(name + ".bias", {channels})};
}

/// Of fp32 on the CPU by panels: MKL rounds otherwise for other numbers of rows, and what a picture becomes may not
/// depend on those beside it.
at::Tensor project(const at::Tensor& x, const AttentionBlock::Projection& by) {
  if (!x.is_cpu() || x.scalar_type() != at::kFloat || x.requires_grad()) return at::linear(x, by.weight, by.bias);
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = by.weight.size(0);
  at::Tensor y = at::empty(shape, x.options()), rows = y.view({-1, shape.back()});
  multiply(x.reshape({-1, x.size(-1)}), by.weight.t(), by.bias, 1, rows);
  return y;
}

/// Halves the sides. Zeros on the right and at the bottom only, as in the original (not symmetric padding).
at::Tensor downsample(const at::Tensor& x, const Convolution& conv) {
  const int64_t height = x.size(2), width = x.size(3);
  at::Tensor padded =
      at::empty({x.size(0), x.size(1), height + 1, width + 1}, x.options().memory_format(x.suggest_memory_format()));
  padded.narrow(2, 0, height).narrow(3, 0, width).copy_(x);
  padded.select(2, height).zero_();
  padded.select(3, width).zero_();
  return conv(padded);
}

at::Tensor upsample(const at::Tensor& x, const Convolution& conv) {
  return conv(at::upsample_nearest2d(x, {x.size(2) * 2, x.size(3) * 2}));
}

std::vector<Level> encoder_levels(TensorSupply& supply, const VaeConfig& config) {
  std::vector<Level> levels(config.encoder_channels.size());
  int64_t in = config.encoder_channels.front();
  for (int64_t i = 0; i < config.levels(); ++i) {
    const std::string name = numbered("encoder.down_blocks.", i);
    const int64_t out = config.encoder_channels[i];
    for (int64_t j = 0; j < config.layers_per_block; ++j) {
      levels[i].blocks.emplace_back(supply, numbered(name + ".resnets.", j), in, out, config.norm_groups);
      in = out;
    }
    if (i + 1 < config.levels()) levels[i].resample.emplace(supply, name + ".downsamplers.0.conv", out, out, 3, 2);
  }
  return levels;
}

std::vector<Level> decoder_levels(TensorSupply& supply, const VaeConfig& config) {
  std::vector<Level> levels(config.decoder_channels.size());
  int64_t in = config.decoder_channels.back();
  for (int64_t i = 0; i < config.levels(); ++i) {
    const std::string name = numbered("decoder.up_blocks.", i);
    const int64_t out = config.decoder_channels[config.levels() - 1 - i];
    for (int64_t j = 0; j < config.layers_per_block + 1; ++j) {
      levels[i].blocks.emplace_back(supply, numbered(name + ".resnets.", j), in, out, config.norm_groups);
      in = out;
    }
    if (i + 1 < config.levels()) levels[i].resample.emplace(supply, name + ".upsamplers.0.conv", out, out, 3);
  }
  return levels;
}

}  // namespace

GroupNorm::GroupNorm(TensorSupply& supply, const std::string& name, int64_t channels, int64_t group_count)
    : weight(supply.tensor(name + ".weight", {channels})),
      bias(supply.tensor(name + ".bias", {channels})),
      groups(group_count) {}

at::Tensor GroupNorm::operator()(const at::Tensor& x, Then then) const {
  return group_norm(x, groups, weight, bias, kGroupNormEps, then);
}

ResidualBlock::ResidualBlock(TensorSupply& supply, const std::string& name, int64_t in, int64_t out, int64_t groups)
    : norm1(supply, name + ".norm1", in, groups),
      conv1(supply, name + ".conv1", in, out, 3),
      norm2(supply, name + ".norm2", out, groups),
      conv2(supply, name + ".conv2", out, out, 3) {
  if (in != out) shortcut.emplace(supply, name + ".conv_shortcut", in, out, 1);
}

void ResidualBlock::pack() {
  conv1.pack();
  conv2.pack();
  if (shortcut) shortcut->pack();
}

at::Tensor ResidualBlock::operator()(const at::Tensor& x) const {
  at::Tensor y = conv1(norm1(x, Then::silu));
  y = norm2(y, Then::silu);
  return conv2.plus(y, shortcut ? (*shortcut)(x) : x);
}

AttentionBlock::AttentionBlock(TensorSupply& supply, const std::string& name, int64_t channels, int64_t groups)
    : norm(supply, name + ".group_norm", channels, groups),
      q(projection(supply, name + ".to_q", channels)),
      k(projection(supply, name + ".to_k", channels)),
      v(projection(supply, name + ".to_v", channels)),
      out(projection(supply, name + ".to_out.0", channels)) {}

at::Tensor AttentionBlock::operator()(const at::Tensor& x) const {
  const at::Tensor tokens = norm(x).permute({0, 2, 3, 1}).flatten(1, 2).contiguous();  // [B, H*W, C]
  const auto head = [](const at::Tensor& t) { return t.unsqueeze(1); };                // one head
  const at::Tensor y =
      at::scaled_dot_product_attention(head(project(tokens, q)), head(project(tokens, k)), head(project(tokens, v)));
  return project(y.squeeze(1), out).transpose(1, 2).reshape(x.sizes()) + x;
}

MidBlock::MidBlock(TensorSupply& supply, const std::string& name, int64_t channels, const VaeConfig& config)
    : first(supply, name + ".resnets.0", channels, channels, config.norm_groups),
      second(supply, name + ".resnets.1", channels, channels, config.norm_groups) {
  if (config.mid_attention) attention.emplace(supply, name + ".attentions.0", channels, config.norm_groups);
}

at::Tensor MidBlock::operator()(const at::Tensor& x) const {
  const at::Tensor y = first(x);
  return second(attention ? (*attention)(y) : y);
}

Encoder::Encoder(TensorSupply& supply, const VaeConfig& config)
    : conv_in(supply, "encoder.conv_in", 3, config.encoder_channels.front(), 3),
      levels(encoder_levels(supply, config)),
      mid(supply, "encoder.mid_block", config.encoder_channels.back(), config),
      norm_out(supply, "encoder.conv_norm_out", config.encoder_channels.back(), config.norm_groups),
      conv_out(supply, "encoder.conv_out", config.encoder_channels.back(), 2 * config.latent_channels, 3) {}

void Encoder::pack() {
  if (packed) return;
  conv_in.pack();
  for (Level& level : levels) {
    for (ResidualBlock& block : level.blocks) block.pack();
    if (level.resample) level.resample->pack();
  }
  mid.first.pack();
  mid.second.pack();
  conv_out.pack();
  packed = true;
}

at::Tensor Encoder::operator()(const at::Tensor& pixels) const {
  at::Tensor x = conv_in(pixels);
  for (const Level& level : levels) {
    for (const ResidualBlock& block : level.blocks) x = block(x);
    if (level.resample) x = downsample(x, *level.resample);
  }
  return conv_out(norm_out(mid(x).to(at::kFloat), Then::silu));
}

Decoder::Decoder(TensorSupply& supply, const VaeConfig& config)
    : conv_in(supply, "decoder.conv_in", config.latent_channels, config.decoder_channels.back(), 3),
      mid(supply, "decoder.mid_block", config.decoder_channels.back(), config),
      levels(decoder_levels(supply, config)),
      norm_out(supply, "decoder.conv_norm_out", config.decoder_channels.front(), config.norm_groups),
      conv_out(supply, "decoder.conv_out", config.decoder_channels.front(), 3, 3) {}

at::Tensor Decoder::operator()(const at::Tensor& latents) const {
  at::Tensor x = mid(conv_in(latents));
  for (const Level& level : levels) {
    for (const ResidualBlock& block : level.blocks) x = block(x);
    if (level.resample) x = upsample(x, *level.resample);
  }
  return conv_out(norm_out(x, Then::silu));
}

}  // namespace trainer::flux2_vae
