/// @file The two-way table between tokens and ids of one tokenizer.json, and its size limits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace trainer::text {

/// Ids and counts stay below this; real vocabularies have about 150,000 tokens.
inline constexpr std::size_t kMaxVocabulary = 2'000'000;
inline constexpr std::size_t kMaxMerges = 4'000'000;

/// Tokens are views; whoever fills the table keeps their text alive (TokenizerFile::arena).
class Vocabulary {
 public:
  enum class Added { yes, duplicate_token, duplicate_id };
  Added add(std::string_view token, int32_t id) {
    if (!ids_.emplace(token, id).second) return Added::duplicate_token;
    if (!tokens_.emplace(id, token).second) {
      ids_.erase(token);
      return Added::duplicate_id;
    }
    max_id_ = std::max(max_id_, id);
    return Added::yes;
  }
  [[nodiscard]] std::optional<int32_t> id(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  [[nodiscard]] std::optional<std::string_view> token(int64_t id) const {
    const auto found = tokens_.find(id);
    return found == tokens_.end() ? std::nullopt : std::optional(found->second);
  }
  /// -1 when empty.
  [[nodiscard]] int32_t max_id() const { return max_id_; }
  [[nodiscard]] std::size_t size() const { return ids_.size(); }
  void reserve(std::size_t count) {
    ids_.reserve(count);
    tokens_.reserve(count);
  }

 private:
  std::unordered_map<std::string_view, int32_t> ids_;
  std::unordered_map<int64_t, std::string_view> tokens_;
  int32_t max_id_ = -1;
};

}  // namespace trainer::text
