/// @file The "normalizer" and "pre_tokenizer" parts of tokenizer.json: normal forms, regular-expression splits, and the
/// byte alphabet (GPT-2's map of the 256 bytes to printable characters).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <text/regex.hpp>
#include <text/utf8.hpp>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace trainer::text {

/// null, NFC, NFD, NFKC, NFKD, or a Sequence of them.
class Normalizer {
 public:
  /// `where` stands in messages. Throws Error (bad_input): TOK_UNSUPPORTED naming another kind, TOK_FIELD.
  Normalizer(const nlohmann::json& description, const std::string& where);
  [[nodiscard]] std::string apply(std::string_view text) const;

 private:
  void add(const nlohmann::json& description, const std::string& where);
  std::vector<NormalForm> forms_;
};

/// ByteLevel, Split, or a Sequence of them, with exactly one ByteLevel.
class PreTokenizer {
 public:
  /// As Normalizer; also TOK_REGEX for a pattern that cannot be used.
  PreTokenizer(const nlohmann::json& description, const std::string& where);
  /// Non-empty pieces of valid UTF-8 text, in the byte alphabet.
  [[nodiscard]] std::vector<std::string> apply(std::string_view text) const;

 private:
  enum class Behaviour { removed, isolated, merged_with_previous, merged_with_next, contiguous };
  struct Split {
    Regex regex;
    Behaviour behaviour;
    bool invert;
  };
  struct ByteLevel {
    bool add_prefix_space;
    std::optional<Regex> regex;
  };
  void add(const nlohmann::json& description, const std::string& where);
  static std::vector<Span> arrange(std::vector<Span> parts, Behaviour behaviour);
  std::vector<std::variant<Split, ByteLevel>> steps_;
};

/// Each byte of `bytes` as its character of the byte alphabet.
std::string to_byte_alphabet(std::string_view bytes);

/// The reverse; a token with any other character comes back unchanged.
std::string from_byte_alphabet(std::string_view text);

}  // namespace trainer::text
