/// @file The SDK's tokenizer over ours: what text encoder plugins are given. The only part of this module that knows
/// LibTorch (the SDK's headers include it), therefore a library of its own, `text_sdk`.
#pragma once

#include <filesystem>
#include <memory>
#include <text/tokenizer.hpp>
#include <trainer/sdk/encoders.hpp>

namespace trainer::text {

class SdkTokenizer final : public trainer::Tokenizer {
 public:
  explicit SdkTokenizer(text::Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}
  /// `path`: a tokenizer.json or the folder that holds it. Throws as Tokenizer::load.
  static std::shared_ptr<SdkTokenizer> load(const std::filesystem::path& path);

  [[nodiscard]] std::vector<int64_t> encode(std::string_view text) const override;
  [[nodiscard]] std::optional<int64_t> id(std::string_view token) const override;
  /// For cache keys.
  [[nodiscard]] const std::string& content_hash() const { return tokenizer_.content_hash(); }

 private:
  text::Tokenizer tokenizer_;
};

}  // namespace trainer::text
