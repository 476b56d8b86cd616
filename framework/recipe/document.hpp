/// @file A TOML text as a tree that remembers where everything was written. toml++ is used in document.cpp only.
#pragma once

#include <recipe/recipe.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace trainer::recipe {

struct Entry;
/// Dates and times: valid TOML that no key takes.
struct Date {};

struct Node {
  using List = std::vector<Node>;
  using Entries = std::vector<Entry>;  ///< a table in the order of the text

  std::variant<Date, bool, int64_t, double, std::string, List, Entries> data;
  SourcePosition position;

  template <typename T>
  [[nodiscard]] const T* get_if() const {
    return std::get_if<T>(&data);
  }
  [[nodiscard]] bool is_table() const { return std::holds_alternative<Entries>(data); }
  /// The value of a key of this table, or nullptr (also when this is no table).
  [[nodiscard]] const Node* find(std::string_view key) const;
  [[nodiscard]] Node* find(std::string_view key);
};

struct Entry {
  std::string key;
  SourcePosition position;  ///< of the key; the value has its own
  Node value;
};

/// Reads a TOML text; `file` stands in positions. Throws Error (bad_recipe), "file:line:col: ...", with the text of the
/// line if `show_line`. Nesting is limited, so that no text can exhaust the stack.
Node parse_toml(std::string_view text, const std::string& file, bool show_line = true);

/// The value of `--set key=value`: TOML, or a bare word, which is a string. `position` is given to every part of it.
Node parse_override_value(const std::string& text, const SourcePosition& position);

/// "the string \"abc\"", "3", "a list": for "found ..." in messages.
std::string describe(const Node& node);

}  // namespace trainer::recipe
