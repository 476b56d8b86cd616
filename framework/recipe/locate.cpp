#include <recipe/compose.hpp>
#include <recipe/locate.hpp>

#include <string_view>

namespace trainer::recipe {
namespace {

/// "memory.selective_checkpointing.save" of "memory.selective_checkpointing.save: ..."; "" without one.
std::string_view leading_key(std::string_view message) {
  const std::size_t end = message.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_.");
  if (end == std::string_view::npos || message[end] != ':') return {};
  const std::string_view key = message.substr(0, end);
  const std::size_t dot = key.find('.');
  return dot == std::string_view::npos || dot == 0 || key.back() == '.' ? std::string_view() : key;
}

/// The value of a dotted key, or the innermost table or value on the way to it that is there.
const Node& nearest(const Node& root, std::string_view key) {
  const Node* node = &root;
  while (!key.empty()) {
    const std::size_t dot = key.find('.');
    const Node* next = node->find(key.substr(0, dot));
    if (next == nullptr) break;
    node = next;
    key = dot == std::string_view::npos ? std::string_view() : key.substr(dot + 1);
  }
  return *node;
}

}  // namespace

std::string with_position(const std::string& message, const std::string& file, std::span<const std::string> overrides) {
  const std::string_view key = leading_key(message);
  if (key.empty() || file.empty()) return message;
  try {
    Node root = read_with_bases(file);
    Problems ignored;
    apply_overrides(root, overrides, ignored);
    const Node& found = nearest(root, key);
    return &found == &root ? message : found.position.text() + ": " + message;
  } catch (const Error&) {
    return message;
  }
}

}  // namespace trainer::recipe
