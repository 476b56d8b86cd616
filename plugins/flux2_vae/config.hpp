/// @file Architecture of one FLUX.2 autoencoder: widths, depths and the few constants that no tensor tells.
/// Source: config.json of diffusers' AutoencoderKLFlux2; where there is none, the shapes of the tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainer::flux2_vae {

struct VaeConfig {
  std::vector<int64_t> encoder_channels = {128, 256, 512, 512};  ///< width of each level, finest first
  std::vector<int64_t> decoder_channels = {128, 256, 512, 512};  ///< as many levels, finest first
  int64_t layers_per_block = 2;  ///< residual blocks of an encoder level; a decoder level has one more
  int64_t latent_channels = 32;  ///< before the 2x2 folding
  int64_t norm_groups = 32;
  int64_t sample_size = 1024;  ///< side of a tile in pixels
  int64_t patch = 2;           ///< side of the cells folded into channels
  double batch_norm_eps = 1e-4;
  bool quant_conv = true;
  bool post_quant_conv = true;
  bool mid_attention = true;

  [[nodiscard]] int64_t levels() const { return static_cast<int64_t>(encoder_channels.size()); }
  [[nodiscard]] int64_t downscale() const { return int64_t{1} << (levels() - 1); }  ///< pixels per latent and side
  [[nodiscard]] int64_t spatial_factor() const { return downscale() * patch; }
  [[nodiscard]] int64_t packed_channels() const { return latent_channels * patch * patch; }
};

/// Values of `json` over `base` (what the tensors told). The decoder's widths stay those of `base` unless the file
/// names them. `where` is put into messages. Throws Error (bad_input, MODEL_CONFIG): malformed, wrong type or range,
/// another model class, or a variant this code does not compute.
VaeConfig parse_config(const std::string& json, const VaeConfig& base, const std::string& where);

/// Throws Error (bad_input, MODEL_CONFIG) when the values do not fit each other, e.g. groups that do not divide a
/// width.
void check_config(const VaeConfig& config, const std::string& where);

}  // namespace trainer::flux2_vae
