/// @file Text to token ids and back, from a Hugging Face tokenizer.json (byte-level BPE: the Mistral and Qwen
/// tokenizers of FLUX.2). Used by the text encoders through an adapter of the host. Gives the same ids as the
/// `tokenizers` library, except for characters younger than Unicode 14 (PCRE2 10.42) where a split depends on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::text {

/// Longest text that `encode` takes, in bytes.
inline constexpr std::size_t kMaxTextBytes = std::size_t{16} << 20;

/// Immutable after loading; every member may be called from several threads. Copies share their tables.
class Tokenizer {
 public:
  /// Reads and checks the file (at most 64 MiB). Throws Error: not_found, io, or bad_input with one of the codes
  /// TOK_JSON, TOK_LIMIT, TOK_DUPLICATE, TOK_FIELD, TOK_INCONSISTENT, TOK_REGEX, TOK_UNSUPPORTED; the message names the
  /// file and the key. The file's "truncation" and "padding" are not applied: encoders have their own.
  static Tokenizer load(const std::filesystem::path& tokenizer_json);
  /// The same from the file's content; `name` stands in messages.
  static Tokenizer parse(std::string_view content, const std::string& name);

  /// Ids of `text`. Added tokens written out in the text become their ids. With `add_special_tokens` the file's
  /// post-processor puts its tokens around (e.g. <s> in front); renderers of prompts leave it false.
  /// Throws Error (bad_input, TOK_TEXT) for invalid UTF-8, with the byte offset, and for texts over kMaxTextBytes.
  [[nodiscard]] std::vector<int64_t> encode(std::string_view text, bool add_special_tokens = false) const;

  /// Valid UTF-8; what the ids leave incomplete becomes U+FFFD. Special tokens are left out if asked.
  /// Throws Error (bad_input, TOK_ID) for an id that is no token.
  [[nodiscard]] std::string decode(std::span<const int64_t> ids, bool skip_special_tokens = false) const;

  /// Id of a token of the vocabulary (in the byte alphabet) or of an added token (as written).
  [[nodiscard]] std::optional<int64_t> token_id(std::string_view token) const;

  /// Different tokens, added ones included. Ids may have gaps: see max_id.
  [[nodiscard]] std::size_t vocabulary_size() const;

  /// The largest id that `encode` can give; an embedding table needs one row more.
  [[nodiscard]] int64_t max_id() const;

  /// XXH3-128 of the file's bytes, 32 hex digits.
  [[nodiscard]] const std::string& content_hash() const;

 private:
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

}  // namespace trainer::text
