/// @file The recipe's text encoder and autoencoder, with their weights or on shapes alone.
#pragma once

#include <assembly/components.hpp>
#include <assembly/weights.hpp>
#include <text/sdk_tokenizer.hpp>
#include <trainer/sdk/encoders.hpp>
#include <weights/model_files.hpp>

#include <functional>
#include <memory>
#include <optional>

namespace trainer::assembly {

class Encoders {
 public:
  explicit Encoders(Components& components) : components_(components) {}  ///< borrowed

  [[nodiscard]] Components& components() { return components_; }

  /// With Weights::file on its device, with Weights::shapes on the dry device that stands for it. Throws Error as
  /// opening its files does, and PluginError.
  std::unique_ptr<TextEncoder> text_encoder(Weights weights = Weights::file);
  std::unique_ptr<Autoencoder> autoencoder(Weights weights = Weights::file);

  /// The text encoder on shapes alone, for texts as long as it takes.
  struct OnShapes {
    std::unique_ptr<TextEncoder> encoder;
    std::function<bool()> length_guessed;  ///< whether it asked for tokens though no option says how many
  };
  OnShapes text_encoder_on_shapes();
  /// The option of the text encoder that bounds a text, by the name that our encoders have for it.
  [[nodiscard]] std::optional<int64_t> longest_text() const;
  /// Pixels along a side of the autoencoder's latent cells. Its weights are not read where it can be made on shapes.
  int64_t spatial_factor();

  /// What the encoders read; headers alone. Null for an encoder that reads nothing.
  std::shared_ptr<weights::ModelFiles> text_encoder_files();
  std::shared_ptr<weights::ModelFiles> autoencoder_files();
  std::shared_ptr<text::SdkTokenizer> tokenizer();

 private:
  EncoderContext context(const recipe::Component& component, std::shared_ptr<weights::ModelFiles> files,
                         Weights weights) const;
  Components& components_;
};

}  // namespace trainer::assembly
