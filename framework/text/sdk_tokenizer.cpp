/// @file The SDK's tokenizer over ours.
#include <text/sdk_tokenizer.hpp>

#include <system_error>

namespace trainer::text {

std::shared_ptr<SdkTokenizer> SdkTokenizer::load(const std::filesystem::path& path) {
  std::error_code error;
  const bool folder = std::filesystem::is_directory(path, error);
  return std::make_shared<SdkTokenizer>(text::Tokenizer::load(folder ? path / "tokenizer.json" : path));
}

std::vector<int64_t> SdkTokenizer::encode(std::string_view text) const { return tokenizer_.encode(text); }

std::optional<int64_t> SdkTokenizer::id(std::string_view token) const { return tokenizer_.token_id(token); }

}  // namespace trainer::text
