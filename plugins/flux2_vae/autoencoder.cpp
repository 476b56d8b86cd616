#include "autoencoder.hpp"

#include "tiling.hpp"

#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>
#include <trainer/sdk/error.hpp>

#include <cstdio>

namespace trainer::flux2_vae {
namespace {

/// Names the numbers this code produces, for people; its count goes up when their bits change. Caches do not ask for
/// it: their keys hold the hash of this plugin's library.
constexpr const char* kIdentity = "flux2_vae 2: posterior mean, 2-d fold, stored batch-norm statistics";

Tiling parse_tiling(const Options& options) {
  const auto text = options.get_or<std::string>("tiling", "auto");
  if (text == "auto") return Tiling::automatic;
  if (text == "always") return Tiling::always;
  if (text == "never") return Tiling::never;
  throw Error(ExitCode::bad_recipe, "key \"" + options.section() + ".tiling\" is \"" + text +
                                        "\"; valid are \"auto\", \"always\" and \"never\"");
}

std::string sizes_of(const at::Tensor& x) {
  std::string text = "[";
  for (int64_t i = 0; i < x.dim(); ++i) text += (i == 0 ? "" : ",") + std::to_string(x.size(i));
  return text + "]";
}

std::string widths(const std::vector<int64_t>& channels) {
  std::string text;
  for (const int64_t width : channels) text += (text.empty() ? "" : "/") + std::to_string(width);
  return text;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

bool use_tiles(Tiling tiling, const at::Tensor& x, int64_t side) {
  if (tiling == Tiling::automatic) return x.size(2) > side || x.size(3) > side;
  return tiling == Tiling::always;
}

/// Tiles must start on latent cells with an overlap of a quarter, or the parts do not fit together (nor in diffusers).
int64_t tile_side(const VaeConfig& config) {
  const int64_t step = 4 * config.downscale();
  if (config.sample_size % step == 0) return config.sample_size;
  throw Error(ExitCode::bad_input,
              "sample_size " + std::to_string(config.sample_size) +
                  " of the autoencoder's config.json is no multiple of " + std::to_string(step) +
                  ", so images cannot be tiled; set autoencoder.tiling = \"never\"",
              "MODEL_CONFIG");
}

VaeConfig read_config(const EncoderContext& context, const FileLayout& layout) {
  const std::string where = context.weights->describe();
  VaeConfig config = infer_config(*context.weights, layout);
  if (!context.config.empty()) config = parse_config(context.config, config, where);
  check_config(config, where);
  return config;
}

}  // namespace

struct Flux2Autoencoder::Network {
  Network(TensorSupply& supply, const VaeConfig& config)
      : encoder(supply, config),
        decoder(supply, config),
        bn_mean(supply.tensor("bn.running_mean", {config.packed_channels()})),
        bn_var(supply.tensor("bn.running_var", {config.packed_channels()})) {
    const int64_t latent = config.latent_channels;
    if (config.quant_conv) quant_conv.emplace(supply, "quant_conv", 2 * latent, 2 * latent, 1);
    if (config.post_quant_conv) post_quant_conv.emplace(supply, "post_quant_conv", latent, latent, 1);
  }

  /// Of what encodes. LibTorch's own 1x1 convolutions of small maps have bits that depend on threads and batch.
  void pack() {
    encoder.pack();
    if (quant_conv) quant_conv->pack();
  }

  Encoder encoder;
  Decoder decoder;
  at::Tensor bn_mean, bn_var;
  std::optional<Convolution> quant_conv, post_quant_conv;
};

Flux2Autoencoder::Flux2Autoencoder(const EncoderContext& context)
    : tiling_(parse_tiling(context.options)), dtype_(context.dtype), device_(context.device) {
  const c10::NoGradGuard no_grad;
  const FileLayout layout = detect_layout(*context.weights);
  config_ = read_config(context, layout);
  layout_ = layout.layout == Layout::bfl ? "BFL" : "diffusers";
  Requirements required;
  Network(required, config_);
  check_tensors(*context.weights, layout, required.tensors());
  FileSupply supply(*context.weights, layout, dtype_, device_);
  network_ = std::make_shared<Network>(supply, config_);
  bn_mean_ = network_->bn_mean.view({1, -1, 1, 1});
  bn_std_ = (network_->bn_var + config_.batch_norm_eps).sqrt().view({1, -1, 1, 1});
}

at::Tensor Flux2Autoencoder::moments(const at::Tensor& pixels) const {
  network_->pack();
  const auto run = [this](const at::Tensor& x) {
    const at::Tensor y = network_->encoder(x);
    return network_->quant_conv ? (*network_->quant_conv)(y) : y;
  };
  const at::Tensor x = pixels.to(device_, dtype_);
  if (!use_tiles(tiling_, x, config_.sample_size)) return run(x);
  return run_tiled(x, encode_tiles(tile_side(config_), config_.downscale()), run);
}

at::Tensor Flux2Autoencoder::pixels(const at::Tensor& latents) const {
  const auto run = [this](const at::Tensor& x) {
    return network_->decoder((network_->post_quant_conv ? (*network_->post_quant_conv)(x) : x).to(dtype_));
  };
  const at::Tensor x = latents.to(device_, at::kFloat);
  if (!use_tiles(tiling_, x, config_.sample_size / config_.downscale())) return run(x).to(at::kFloat);
  return run_tiled(x, decode_tiles(tile_side(config_), config_.downscale()), run);
}

at::Tensor Flux2Autoencoder::normalise(const at::Tensor& mean) const {
  const int64_t b = mean.size(0), c = mean.size(1), p = config_.patch, h = mean.size(2) / p, w = mean.size(3) / p;
  // Channel c * p * p + row * p + column.
  const at::Tensor folded = mean.reshape({b, c, h, p, w, p}).permute({0, 1, 3, 5, 2, 4}).reshape({b, c * p * p, h, w});
  return (folded - bn_mean_) / bn_std_;
}

at::Tensor Flux2Autoencoder::denormalise(const at::Tensor& latents) const {
  const int64_t b = latents.size(0), c = config_.latent_channels, p = config_.patch, h = latents.size(2),
                w = latents.size(3);
  const at::Tensor folded = latents * bn_std_ + bn_mean_;
  return folded.reshape({b, c, p, p, h, w}).permute({0, 1, 4, 2, 5, 3}).reshape({b, c, h * p, w * p});
}

at::Tensor Flux2Autoencoder::encode(const at::Tensor& pixels) {
  const c10::NoGradGuard no_grad;
  const int64_t factor = spatial_factor();
  const bool fits = pixels.dim() == 5 && pixels.size(1) == 3 && pixels.size(2) == 1 && pixels.size(3) > 0 &&
                    pixels.size(4) > 0 && pixels.size(3) % factor == 0 && pixels.size(4) % factor == 0;
  if (!fits) {
    throw Error(ExitCode::bad_input, "pixels " + sizes_of(pixels) +
                                         ": the autoencoder needs [B,3,1,H,W] with sides that are "
                                         "multiples of " +
                                         std::to_string(factor));
  }
  const at::Tensor mean = moments(pixels.select(2, 0)).narrow(1, 0, config_.latent_channels);
  return normalise(mean).unsqueeze(2);
}

at::Tensor Flux2Autoencoder::decode(const at::Tensor& latents) {
  const c10::NoGradGuard no_grad;
  const bool fits = latents.dim() == 5 && latents.size(1) == latent_channels() && latents.size(2) == 1 &&
                    latents.size(3) > 0 && latents.size(4) > 0;
  if (!fits) {
    throw Error(ExitCode::bad_input, "latents " + sizes_of(latents) + ": the autoencoder needs [B," +
                                         std::to_string(latent_channels()) + ",1,h,w]");
  }
  return pixels(denormalise(latents.select(2, 0).to(device_, at::kFloat))).unsqueeze(2);
}

std::string Flux2Autoencoder::identity() const {
  return std::string(kIdentity) + "; groups " + std::to_string(config_.norm_groups) + ", eps " +
         number(config_.batch_norm_eps) + ", tile " + std::to_string(config_.sample_size) + ", " +
         c10::toString(dtype_);
}

std::string Flux2Autoencoder::describe() const {
  std::string text = "FLUX.2 autoencoder (" + layout_ + " file), widths " + widths(config_.encoder_channels);
  if (config_.decoder_channels != config_.encoder_channels) text += ", decoder " + widths(config_.decoder_channels);
  return text + ", " + std::to_string(latent_channels()) + " channels of " + std::to_string(spatial_factor()) + "x" +
         std::to_string(spatial_factor()) + " px, " + c10::toString(dtype_);
}

}  // namespace trainer::flux2_vae
