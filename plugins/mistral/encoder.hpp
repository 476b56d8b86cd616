/// @file The text encoders as components: options, captions -> conditioning. Made by plugin.cpp.
#pragma once

#include <trainer/sdk/encoders.hpp>

#include "causal_lm.hpp"
#include "prompt.hpp"

namespace trainer::mistral {

/// What the recipe says; checked against the config.
struct EncoderOptions {
  PromptStyle style;
  std::vector<int64_t> layers;  ///< tapped: hidden state k is the residual stream after k layers, before the final norm
  int64_t micro_batch = 4;      ///< captions per forward
};

/// `encode` gives {"prompt_embeds": [max_tokens, layers * hidden]} per caption, on the CPU in the compute dtype: per
/// token the tapped states one after the other. Pad rows hold what the reference computes there, since the image model
/// attends to them. Holds the hidden states of all captions of a call on the device, rows of left padding excepted.
class LmEncoder final : public TextEncoder {
 public:
  /// Reads config and headers; no weights. Throws Error for anything that `encode` would fail on.
  LmEncoder(const EncoderContext& context, Family family);
  std::vector<NamedTensors> encode(std::span<const std::string> captions) override;
  [[nodiscard]] std::string identity() const override;
  [[nodiscard]] std::string describe() const override;

 private:
  LmEncoder(const EncoderContext& context, const LmConfig& config);

  LmConfig config_;
  EncoderOptions options_;
  CausalLm model_;
  std::shared_ptr<Tokenizer> tokenizer_;
  std::string source_;
  at::ScalarType dtype_;
  at::Device device_;
};

}  // namespace trainer::mistral
