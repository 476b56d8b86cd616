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

/// Calls `visit(key, child)` for every value directly below `node`.
template <typename Parent, typename Visit>
void for_each_child(Parent& node, const std::string& key, const Visit& visit) {
  const std::string prefix = key.empty() ? "" : key + ".";
  if (auto* entries = std::get_if<Node::Entries>(&node.data))
    for (auto& entry : *entries) visit(prefix + entry.key, entry.value);
  if (auto* items = std::get_if<Node::List>(&node.data))
    for (std::size_t i = 0; i < items->size(); ++i) visit(prefix + std::to_string(i), (*items)[i]);
}

void collect(const Node& node, const std::string& key, Positions& positions) {
  for_each_child(node, key, [&](const std::string& child_key, const Node& child) {
    positions[child_key] = child.position;
    collect(child, child_key, positions);
  });
}

void restore(Node& node, const std::string& key, const Positions& positions) {
  for_each_child(node, key, [&](const std::string& child_key, Node& child) {
    const auto known = positions.find(child_key);
    child.position = known == positions.end() ? node.position : known->second;
    restore(child, child_key, positions);
  });
}

/// A strategy without a table of its own stands where memory.strategies names it.
void restore_strategies(Node& root, const Positions& positions) {
  Node* memory = root.find("memory");
  const Node* list = memory == nullptr ? nullptr : memory->find("strategies");
  const auto* names = list == nullptr ? nullptr : list->get_if<Node::List>();
  if (names == nullptr) return;
  for (const Node& item : *names) {
    const auto* name = item.get_if<std::string>();
    Node* table = name == nullptr || positions.contains("memory." + *name) ? nullptr : memory->find(*name);
    if (table != nullptr) table->position = item.position;
  }
}

}  // namespace

Positions positions_of(const Node& root) {
  Positions positions;
  collect(root, "", positions);
  return positions;
}

void restore_positions(Node& root, const Positions& positions) {
  restore(root, "", positions);
  restore_strategies(root, positions);
}

std::string with_position(const std::string& message, const Positions& positions) {
  std::string key(leading_key(message));
  while (!key.empty()) {
    if (const auto known = positions.find(key); known != positions.end()) return known->second.text() + ": " + message;
    const std::size_t dot = key.rfind('.');
    key.resize(dot == std::string::npos ? 0 : dot);
  }
  return message;
}

}  // namespace trainer::recipe
