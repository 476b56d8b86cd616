/// @file Reads tokenizer.json: a checked JSON parse that keeps the two large tables out of the JSON tree.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <text/vocabulary.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trainer::text {

/// Largest tokenizer.json that is read.
inline constexpr std::size_t kMaxTokenizerBytes = std::size_t{64} << 20;

struct TokenizerFile {
  /// Everything but `model.vocab` and `model.merges` (null there).
  std::shared_ptr<const nlohmann::json> root;
  Vocabulary vocabulary;
  /// In rank order; both notations ("a b" and ["a", "b"]).
  std::vector<std::pair<std::string_view, std::string_view>> merges;
  /// Owns the text of vocabulary and merges; never reallocated.
  std::shared_ptr<const std::string> arena;
};

/// Parses the content of a tokenizer.json. `name` stands in messages. Refuses with Error (bad_input): JSON errors with
/// line and column (TOK_JSON), nesting beyond 32 or too many entries (TOK_LIMIT), repeated keys, tokens or ids
/// (TOK_DUPLICATE), values of the wrong kind (TOK_FIELD).
TokenizerFile parse_tokenizer_file(std::string_view content, const std::string& name);

}  // namespace trainer::text
