/// @file Encoder and decoder of the FLUX.2 autoencoder. Source: diffusers `vae.py`, `unet_2d_blocks.py`, `resnet.py`.
/// All activations [B, C, H, W] in the compute dtype; GroupNorm eps 1e-6; no time embedding.
#pragma once

#include "convolution.hpp"
#include "group_norm.hpp"

#include <optional>

namespace trainer::flux2_vae {

struct GroupNorm {
  GroupNorm(TensorSupply& supply, const std::string& name, int64_t channels, int64_t groups);
  [[nodiscard]] at::Tensor operator()(const at::Tensor& x, Then then = Then::nothing) const;  ///< as group_norm

  at::Tensor weight, bias;
  int64_t groups;
};

/// x + conv2(silu(norm2(conv1(silu(norm1(x)))))), x through a 1x1 convolution where the width changes.
struct ResidualBlock {
  ResidualBlock(TensorSupply& supply, const std::string& name, int64_t in, int64_t out, int64_t groups);
  void pack();  ///< as Convolution::pack
  /// Uses x up: the result may be written to it.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& x) const;

  GroupNorm norm1;
  Convolution conv1;
  GroupNorm norm2;
  Convolution conv2;
  std::optional<Convolution> shortcut;
};

/// x + attention over all positions with one head as wide as the level.
struct AttentionBlock {
  AttentionBlock(TensorSupply& supply, const std::string& name, int64_t channels, int64_t groups);
  [[nodiscard]] at::Tensor operator()(const at::Tensor& x) const;

  struct Projection {
    at::Tensor weight, bias;
  };
  GroupNorm norm;
  Projection q, k, v, out;
};

struct MidBlock {
  MidBlock(TensorSupply& supply, const std::string& name, int64_t channels, const VaeConfig& config);
  [[nodiscard]] at::Tensor operator()(const at::Tensor& x) const;

  ResidualBlock first;
  std::optional<AttentionBlock> attention;
  ResidualBlock second;
};

/// Residual blocks of one resolution and the step to the next one, absent at the last level.
struct Level {
  std::vector<ResidualBlock> blocks;
  std::optional<Convolution> resample;
};

/// [B, 3, H, W] -> moments before quant_conv [B, 2 latent, H/downscale, W/downscale]. Its convolutions may be packed;
/// the decoder's are not, so that a sample has the same bits on devices that compute as the CPU does.
struct Encoder {
  Encoder(TensorSupply& supply, const VaeConfig& config);
  /// As Convolution::pack, of all; again: nothing. Not in the constructor: who only decodes need not wait for it.
  void pack();
  [[nodiscard]] at::Tensor operator()(const at::Tensor& pixels) const;

  Convolution conv_in;
  std::vector<Level> levels;
  MidBlock mid;
  GroupNorm norm_out;
  Convolution conv_out;
  bool packed = false;
};

/// [B, latent, h, w] -> [B, 3, h*downscale, w*downscale].
struct Decoder {
  Decoder(TensorSupply& supply, const VaeConfig& config);
  [[nodiscard]] at::Tensor operator()(const at::Tensor& latents) const;

  Convolution conv_in;
  MidBlock mid;
  std::vector<Level> levels;  ///< coarsest first
  GroupNorm norm_out;
  Convolution conv_out;
};

}  // namespace trainer::flux2_vae
