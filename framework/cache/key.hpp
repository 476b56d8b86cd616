/// @file Cache keys: hashes of everything that decides what an encoder makes of an input, so that a changed input
/// misses and nothing is ever taken for something else. Free of LibTorch.
#pragma once

#include <data/buckets.hpp>

#include <string>
#include <string_view>

namespace trainer::cache {

/// What an encoder is, known without making it (making one may load 48 GB).
struct EncoderIdentity {
  std::string name;       ///< the component, e.g. "mistral": for messages as well
  std::string component;  ///< its code: plugin version, fingerprint or hash of the library
  std::string weights;    ///< WeightSource::identity
  std::string tokenizer;  ///< hash of tokenizer.json; empty for an autoencoder
  std::string options;    ///< recipe::options_identity of its section: template, max_tokens, layers, ...
  std::string dtype;      ///< compute dtype, "bf16" or "fp32"
};

/// `content`: hash of the image file's bytes; `size`: what it is resized and cropped to.
std::string latents_key(const EncoderIdentity& autoencoder, std::string_view content, const data::Bucket& size);
/// `caption`: the exact text given to the encoder, the trigger included.
std::string text_key(const EncoderIdentity& text_encoder, std::string_view caption);

}  // namespace trainer::cache
