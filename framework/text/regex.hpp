/// @file Regular expressions of tokenizer.json. They are written for Oniguruma (Hugging Face tokenizers); here PCRE2
/// matches them, after a translation that keeps the meaning of \s and \w and refuses what the two read differently.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::text {

/// A part [begin, end) of a text, in bytes.
struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool is_match = false;
  bool operator==(const Span&) const = default;
};

/// An immutable compiled expression; safe to use from several threads.
class Regex {
 public:
  /// Throws Error (bad_input, TOK_REGEX) with the offset in the pattern when it cannot be compiled.
  static Regex compile(std::string_view pattern);
  /// Matches exactly this text.
  static Regex literal(std::string_view text);

  /// Cuts valid UTF-8 into matches and what lies between them, without gaps, in order; empty parts are kept as
  /// Hugging Face's Pattern::find_matches keeps them. Throws Error (bad_input, TOK_REGEX) when a match limit is hit.
  [[nodiscard]] std::vector<Span> split(std::string_view text) const;

 private:
  struct Impl;
  explicit Regex(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

/// The pattern as PCRE2 reads it (exposed for tests). Throws as `compile`.
std::string translate_oniguruma(std::string_view pattern);

}  // namespace trainer::text
