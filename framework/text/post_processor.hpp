/// @file The "post_processor" of tokenizer.json: which special tokens go around a text when they are asked for.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trainer::text {

/// null, ByteLevel (changes no ids), TemplateProcessing (its form for one text), or a Sequence of them.
class PostProcessor {
 public:
  /// Throws Error (bad_input): TOK_UNSUPPORTED naming another kind, TOK_FIELD, TOK_INCONSISTENT for an id that is no
  /// token's by `known`.
  PostProcessor(const nlohmann::json& description, const std::function<bool(int64_t)>& known, const std::string& where);
  [[nodiscard]] std::vector<int64_t> apply(std::vector<int64_t> ids) const;

 private:
  struct Template {
    std::vector<int64_t> before;
    std::vector<int64_t> after;
  };
  void add(const nlohmann::json& description, const std::function<bool(int64_t)>& known, const std::string& where);
  std::vector<Template> templates_;
};

}  // namespace trainer::text
