/// @file Byte-pair encoding of one piece of text, as Hugging Face tokenizers' BPE model does it: the pair of lowest
/// rank first, leftmost among equals. A priority queue keeps long pieces from taking quadratic time.
#pragma once

#include <text/tokenizer_file.hpp>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trainer::text {

class Bpe {
 public:
  /// Takes model type, options, vocabulary and merges. Throws Error (bad_input): TOK_UNSUPPORTED for a model other than
  /// byte-level BPE, TOK_INCONSISTENT for merges of unknown tokens, TOK_DUPLICATE for repeated merges.
  Bpe(TokenizerFile file, const std::string& name);

  /// Appends the ids of one piece, which is in the byte alphabet. A character outside the vocabulary becomes the
  /// unknown token; without one this throws Error (bad_input, TOK_UNKNOWN). Safe to call from several threads.
  void encode(std::string_view piece, std::vector<int64_t>& ids) const;

  [[nodiscard]] const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  struct Symbol;
  struct Merge {
    int32_t rank;
    int32_t id;
  };
  static uint64_t pair_key(int32_t left, int32_t right) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
  }
  void read_options(const TokenizerFile& file);
  void read_merges(const TokenizerFile& file);
  [[nodiscard]] std::vector<Symbol> symbols_of(std::string_view piece) const;
  void merge_all(std::vector<Symbol>& symbols) const;
  bool from_cache(std::string_view piece, std::vector<int64_t>& ids) const;
  void to_cache(std::string_view piece, const std::vector<int64_t>& ids, std::size_t first) const;
  [[noreturn]] void fail(const char* code, const std::string& what) const;

  std::string name_;
  Vocabulary vocabulary_;
  std::shared_ptr<const std::string> arena_;  ///< text that the vocabulary views
  std::unordered_map<uint64_t, Merge> merges_;
  std::optional<int32_t> unknown_;
  bool fuse_unknown_ = false;
  bool ignore_merges_ = false;

  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  mutable std::mutex mutex_;  ///< guards the cache
  mutable std::unordered_map<std::string, std::vector<int64_t>, Hash, std::equal_to<>> cache_;
};

}  // namespace trainer::text
