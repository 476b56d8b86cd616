#include <cache/key.hpp>

#include <base/hash.hpp>

#include <bit>
#include <type_traits>

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

void add(FieldHash& hash, const Value& value) {
  hash.add(static_cast<int64_t>(value.data.index()));
  std::visit(
      [&](const auto& typed) {
        using Type = std::decay_t<decltype(typed)>;
        if constexpr (std::is_same_v<Type, std::monostate>) {
        } else if constexpr (std::is_same_v<Type, std::string>) {
          hash.add(typed);
        } else if constexpr (std::is_same_v<Type, double>) {
          hash.add(std::bit_cast<int64_t>(typed));
        } else if constexpr (std::is_same_v<Type, Array>) {
          hash.add(static_cast<int64_t>(typed.size()));
          for (const Value& item : typed) add(hash, item);
        } else if constexpr (std::is_same_v<Type, Table>) {
          hash.add(static_cast<int64_t>(typed.size()));
          for (const auto& [name, item] : typed) hash.add(name), add(hash, item);
        } else {
          hash.add(static_cast<int64_t>(typed));
        }
      },
      value.data);
}

}  // namespace

std::string options_identity(const Options& options) {
  FieldHash hash;
  add(hash, Value{options.values()});
  return hash.hex();
}

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
