#include <recipe/document.hpp>

#include <base/printable.hpp>
#include <base/utf8.hpp>
#include <recipe/write.hpp>
#include <trainer/sdk/error.hpp>

#include <toml++/toml.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace trainer::recipe {
namespace {

/// toml++ limits the depth of values (256), not the number of dots in a key: "a.a.a..." of a megabyte would overflow
/// the stack when the tables are freed.
constexpr std::size_t kMaxKeyDots = 16;
/// Of tables and lists in each other: far more than any recipe has, far less than the stack holds.
constexpr int kMaxDepth = 64;

SourcePosition position_of(const toml::source_region& region, const std::string& file) {
  return {file, region.begin.line, region.begin.column};
}

std::string line_of(std::string_view text, uint32_t line) {
  constexpr std::size_t kShown = 80;
  for (uint32_t at = 1; at < line; ++at) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  text = text.substr(0, text.find('\n'));
  const std::size_t first = text.find_first_not_of(" \t\r"), last = text.find_last_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  text = text.substr(first, last - first + 1);
  return text.size() <= kShown ? std::string(text) : std::string(text.substr(0, kShown)) + "...";
}

/// Skips a string that begins at `at`; returns the place after it (or the end: toml++ reports that).
std::size_t skip_string(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const bool multi_line = text.substr(at, 3) == std::string(3, quote);
  const std::string_view closing = multi_line ? text.substr(at, 3) : text.substr(at, 1);
  for (at += closing.size(); at < text.size(); ++at) {
    if (quote == '"' && text[at] == '\\')
      ++at;
    else if (text.substr(at, closing.size()) == closing)
      return at + closing.size();
    else if (!multi_line && text[at] == '\n')
      return at;
  }
  return text.size();
}

void refuse_deep_keys(std::string_view text, const std::string& file) {
  std::size_t dots = 0;
  uint32_t line = 1;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      const std::size_t end = skip_string(text, at);
      line += static_cast<uint32_t>(std::count(text.begin() + static_cast<std::ptrdiff_t>(at),
                                               text.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
      at = end;
      continue;
    }
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    if (c == '.') {
      if (++dots > kMaxKeyDots) {
        throw Error(ExitCode::bad_recipe, SourcePosition{file, line, 1}.text() + ": a key has more than " +
                                              std::to_string(kMaxKeyDots) + " dots");
      }
    } else if (std::string_view("=,[]{}\n").find(c) != std::string_view::npos) {
      dots = 0;
    }
    if (c == '\n') ++line;
    ++at;
  }
}

Node convert(const toml::node& node, const std::string& file, int depth = 0) {
  Node out;
  out.position = position_of(node.source(), file);
  if (depth > kMaxDepth)
    throw Error(ExitCode::bad_recipe, out.position.text() + ": tables and lists are nested more than " +
                                          std::to_string(kMaxDepth) + " levels deep");
  if (const auto* table = node.as_table()) {
    Node::Entries entries;
    for (const auto& [key, value] : *table) {
      entries.push_back({std::string(key.str()), position_of(key.source(), file), convert(value, file, depth + 1)});
    }
    // toml++ sorts by name; we keep the order of the text.
    std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return std::pair(a.position.line, a.position.column) < std::pair(b.position.line, b.position.column);
    });
    out.data = std::move(entries);
  } else if (const auto* array = node.as_array()) {
    Node::List items;
    for (const toml::node& item : *array) items.push_back(convert(item, file, depth + 1));
    out.data = std::move(items);
  } else if (const auto* text = node.as_string()) {
    out.data = text->get();
  } else if (const auto* integer = node.as_integer()) {
    out.data = integer->get();
  } else if (const auto* number = node.as_floating_point()) {
    out.data = number->get();
  } else if (const auto* boolean = node.as_boolean()) {
    out.data = boolean->get();
  }
  return out;
}

void set_position(Node& node, const SourcePosition& position) {
  node.position = position;
  if (auto* items = std::get_if<Node::List>(&node.data)) {
    for (Node& item : *items) set_position(item, position);
  } else if (auto* entries = std::get_if<Node::Entries>(&node.data)) {
    for (Entry& entry : *entries) {
      entry.position = position;
      set_position(entry.value, position);
    }
  }
}

/// Whether a text that is no TOML value may be meant as a string: it does not begin like a string, list or table.
bool is_bare_word(std::string_view text) {
  return text.empty() || std::string_view("\"'[{").find(text.front()) == std::string_view::npos;
}

}  // namespace

std::string SourcePosition::text() const {
  return line == 0 ? file : file + ":" + std::to_string(line) + ":" + std::to_string(column);
}

const Node* Node::find(std::string_view key) const {
  const auto* entries = std::get_if<Entries>(&data);
  if (entries == nullptr) return nullptr;
  for (const Entry& entry : *entries) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}

Node* Node::find(std::string_view key) { return const_cast<Node*>(std::as_const(*this).find(key)); }

Node parse_toml(std::string_view text, const std::string& file, bool show_line) {
  refuse_deep_keys(text, file);
  try {
    Node root = convert(toml::parse(text, file), file);
    root.position = {file, 1, 1};
    return root;
  } catch (const toml::parse_error& error) {
    const SourcePosition position = position_of(error.source(), file);
    const std::string line = show_line ? line_of(text, position.line) : "";
    throw Error(ExitCode::bad_recipe, position.text() + ": not valid TOML: " + std::string(error.description()) +
                                          (line.empty() ? "" : "\n  " + line));
  }
}

Node parse_override_value(const std::string& text, const SourcePosition& position) {
  if (!is_utf8(text)) throw Error(ExitCode::bad_recipe, "the value is not UTF-8: " + printable(text));
  Node value;
  try {
    const Node root = parse_toml("v = " + text, position.file);
    const auto& entries = std::get<Node::Entries>(root.data);
    // More than one entry: a line break in the text began another key.
    if (entries.size() == 1 && entries.front().key == "v" &&
        !std::holds_alternative<Date>(entries.front().value.data)) {
      value = entries.front().value;
    } else {
      value.data = text;
    }
  } catch (const Error&) {
    if (!is_bare_word(text)) throw Error(ExitCode::bad_recipe, "the value is not valid TOML: " + text);
    value.data = text;
  }
  set_position(value, position);
  return value;
}

std::string describe(const Node& node) {
  constexpr std::size_t kShown = 60;
  if (const auto* text = node.get_if<std::string>()) {
    return "the string " + in_quotes(text->size() <= kShown ? *text : text->substr(0, kShown) + "...");
  }
  if (const auto* boolean = node.get_if<bool>()) return *boolean ? "true" : "false";
  if (const auto* integer = node.get_if<int64_t>()) return std::to_string(*integer);
  if (const auto* number = node.get_if<double>()) return number_text(*number);
  if (node.get_if<Node::List>() != nullptr) return "a list";
  return node.is_table() ? "a table" : "a date or time";
}

}  // namespace trainer::recipe
