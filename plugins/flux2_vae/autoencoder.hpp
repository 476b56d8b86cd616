/// @file The FLUX.2 autoencoder behind the SDK's interface: patchify, batch-norm statistics, tiling, checks of sizes.
#pragma once

#include "layers.hpp"

#include <trainer/sdk/encoders.hpp>

namespace trainer::flux2_vae {

enum class Tiling { automatic, always, never };

class Flux2Autoencoder final : public Autoencoder {
 public:
  /// Reads all weights; the source is not kept. Throws Error (bad_input: MODEL_KEYS, MODEL_CONFIG) when file and config
  /// do not describe a FLUX.2 autoencoder, (bad_recipe) for an unknown tiling.
  explicit Flux2Autoencoder(const EncoderContext& context);

  at::Tensor encode(const at::Tensor& pixels) override;
  at::Tensor decode(const at::Tensor& latents) override;
  [[nodiscard]] int64_t spatial_factor() const override { return config_.spatial_factor(); }
  [[nodiscard]] int64_t latent_channels() const override { return config_.packed_channels(); }
  [[nodiscard]] std::string identity() const override;
  [[nodiscard]] std::string describe() const override;

  [[nodiscard]] const VaeConfig& config() const { return config_; }
  /// Pixels [B, 3, H, W] -> mean and log-variance [B, 2 latent, H/downscale, W/downscale] fp32, tiled where set. The
  /// first call (of this or `encode`) lays the encoder's weights out anew: one thread at a time.
  [[nodiscard]] at::Tensor moments(const at::Tensor& pixels) const;
  /// Latents [B, latent, H, W] -> pixels [B, 3, H*downscale, W*downscale] fp32, tiled where set.
  [[nodiscard]] at::Tensor pixels(const at::Tensor& latents) const;
  /// Mean [B, latent, H, W] fp32 -> normalised [B, C, h, w] fp32, and back.
  [[nodiscard]] at::Tensor normalise(const at::Tensor& mean) const;
  [[nodiscard]] at::Tensor denormalise(const at::Tensor& latents) const;

 private:
  struct Network;

  std::shared_ptr<Network> network_;
  VaeConfig config_;
  Tiling tiling_ = Tiling::automatic;
  at::ScalarType dtype_;
  at::Device device_;
  std::string layout_;           ///< "diffusers" or "BFL", for describe
  at::Tensor bn_mean_, bn_std_;  ///< [1, C, 1, 1] fp32
};

}  // namespace trainer::flux2_vae
