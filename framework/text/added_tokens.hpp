/// @file The "added_tokens" of tokenizer.json: texts such as <s> that become one id wherever they stand in the input,
/// before anything else looks at it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <text/pre_tokenizer.hpp>
#include <text/vocabulary.hpp>

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::text {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< only where no word character touches it
  bool lstrip = false;       ///< takes the white space before it
  bool rstrip = false;       ///< and behind it
  bool normalized = false;   ///< looked for after normalisation, in its normalised form
  bool special = false;
};

class AddedTokens {
 public:
  /// `list` is the array of the file (or null). Throws Error (bad_input): TOK_FIELD, TOK_DUPLICATE, and
  /// TOK_INCONSISTENT when an id contradicts the vocabulary.
  AddedTokens(const nlohmann::json& list, const Vocabulary& vocabulary, const Normalizer& normalizer,
              const std::string& name);

  /// Cuts valid UTF-8 `text` as Hugging Face tokenizers do: leftmost token first, the longest of those that start
  /// there. Calls `on_text` for each part between tokens, normalised, and `on_token` for each token, in order.
  void split(std::string_view text, const Normalizer& normalizer, const std::function<void(std::string_view)>& on_text,
             const std::function<void(int32_t)>& on_token) const;

  [[nodiscard]] std::optional<int32_t> id(std::string_view content) const;
  [[nodiscard]] const AddedToken* find(int64_t id) const;
  /// -1 when there is none.
  [[nodiscard]] int32_t max_id() const { return tokens_.empty() ? -1 : tokens_.rbegin()->first; }
  /// How many are not in the vocabulary themselves.
  [[nodiscard]] std::size_t beyond_vocabulary() const { return beyond_vocabulary_; }

 private:
  /// Finds tokens in a text: their texts by first byte, then by length, longest first.
  struct Matcher {
    std::map<std::string, int32_t, std::less<>> ids;
    std::array<std::vector<std::size_t>, 256> lengths;
    void add(const std::string& content, int32_t id);
    [[nodiscard]] std::optional<std::pair<std::size_t, int32_t>> at(std::string_view text, std::size_t offset) const;
  };
  void check(const AddedToken& token, const Vocabulary& vocabulary, const std::string& where) const;
  void cut(std::string_view text, const Matcher& matcher, const std::function<void(std::string_view)>& on_text,
           const std::function<void(int32_t)>& on_token) const;

  std::map<int32_t, AddedToken> tokens_;
  std::map<std::string, int32_t, std::less<>> ids_;
  Matcher raw_;
  Matcher normalised_;
  std::size_t beyond_vocabulary_ = 0;
};

}  // namespace trainer::text
