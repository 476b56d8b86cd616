#include <cache/key.hpp>

#include <base/hash.hpp>

namespace trainer::cache {
namespace {

// Raise these when our own part of the work changes: decoding, resizing and scaling of pictures; entries' layout.
constexpr int64_t kImageCode = 2;
constexpr int64_t kLayout = 1;

void add(FieldHash& hash, const EncoderIdentity& encoder) {
  for (const std::string* field :
       {&encoder.name, &encoder.component, &encoder.weights, &encoder.tokenizer, &encoder.options, &encoder.dtype}) {
    hash.add(*field);
  }
}

}  // namespace

std::string latents_key(const EncoderIdentity& autoencoder, std::string_view content, const data::Bucket& size) {
  FieldHash hash;
  hash.add("latents").add(kLayout).add(kImageCode).add(content);
  hash.add("cover, lanczos3, centre").add(size.width).add(size.height);
  add(hash, autoencoder);
  return hash.hex();
}

std::string text_key(const EncoderIdentity& text_encoder, std::string_view caption) {
  FieldHash hash;
  hash.add("text").add(kLayout).add(caption);
  add(hash, text_encoder);
  return hash.hex();
}

}  // namespace trainer::cache
