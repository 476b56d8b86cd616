/// @file Encoders: captions -> conditioning, images <-> latents. Used in a cache phase before training and for samples;
/// never resident together with the trained model unless the recipe says so.
#pragma once

#include <trainer/sdk/options.hpp>
#include <trainer/sdk/weights.hpp>

#include <optional>
#include <span>
#include <string>

namespace trainer {

/// Text to token ids; implemented by the host over tokenizer.json.
class TRAINER_API Tokenizer {
 public:
  virtual ~Tokenizer();
  /// Ids of `text`; special tokens written out in the text become their ids; nothing is added around it.
  [[nodiscard]] virtual std::vector<int64_t> encode(std::string_view text) const = 0;
  /// Id of a token of the vocabulary or of an added token.
  [[nodiscard]] virtual std::optional<int64_t> id(std::string_view token) const = 0;
};

class TRAINER_API TextEncoder {
 public:
  virtual ~TextEncoder();
  /// Conditioning for each caption, one entry a caption, e.g. {"prompt_embeds": [L, J] bf16}. All captions of a call
  /// go through one layer before the next, so weights are read once per call. Deterministic; independent of which
  /// captions share a call up to rounding.
  virtual std::vector<NamedTensors> encode(std::span<const std::string> captions) = 0;
  /// Names what, besides weights, tokenizer and options, determines the result: template and code version. For people;
  /// cache keys hash the plugin's library itself.
  [[nodiscard]] virtual std::string identity() const = 0;
  [[nodiscard]] virtual std::string describe() const = 0;
};

class TRAINER_API Autoencoder {
 public:
  virtual ~Autoencoder();
  /// pixels [B, 3, T, H, W] fp32 in [-1, 1], sides multiples of spatial_factor -> normalised latents [B, C, T, h, w].
  virtual at::Tensor encode(const at::Tensor& pixels) = 0;
  /// Latents -> pixels [B, 3, T, H, W] fp32, about [-1, 1], not clamped.
  virtual at::Tensor decode(const at::Tensor& latents) = 0;
  [[nodiscard]] virtual int64_t spatial_factor() const = 0;  ///< pixels per latent cell and side, e.g. 16
  [[nodiscard]] virtual int64_t latent_channels() const = 0;
  [[nodiscard]] virtual std::string identity() const = 0;  ///< as TextEncoder::identity
  [[nodiscard]] virtual std::string describe() const = 0;
};

/// What an encoder factory is given. `weights` and `tokenizer` stay valid as long as the encoder.
struct EncoderContext {
  const Options& options;
  std::shared_ptr<WeightSource> weights;  ///< names as in the file; null if the manifest needs none
  std::string config;                     ///< text of config.json, or ""
  std::shared_ptr<Tokenizer> tokenizer;   ///< text encoders only
  at::ScalarType dtype = at::kFloat;      ///< compute dtype
  at::Device device = at::kCPU;
};

}  // namespace trainer
