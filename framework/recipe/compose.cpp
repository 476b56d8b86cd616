#include <base/files.hpp>
#include <recipe/compose.hpp>
#include <recipe/paths.hpp>
#include <recipe/write.hpp>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>
#include <utility>

namespace trainer::recipe {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxBases = 8;

void merge(Node& base, Node&& over) {
  auto* entries = std::get_if<Node::Entries>(&base.data);
  auto* added = std::get_if<Node::Entries>(&over.data);
  if (entries == nullptr || added == nullptr) {
    base = std::move(over);
    return;
  }
  base.position = over.position;
  for (Entry& entry : *added) {
    const auto same =
        std::find_if(entries->begin(), entries->end(), [&](const Entry& e) { return e.key == entry.key; });
    if (same == entries->end()) {
      entries->push_back(std::move(entry));
    } else {
      same->position = entry.position;
      merge(same->value, std::move(entry.value));
    }
  }
}

/// The file named by `extends`, as it is to be shown: relative to the recipe that names it.
std::string base_file(const Node& extends, const std::string& file) {
  const auto* text = extends.get_if<std::string>();
  const auto fail = [&](const std::string& message) {
    return Error(ExitCode::bad_recipe, extends.position.text() + ": extends: " + message);
  };
  if (text == nullptr || text->empty()) throw fail("expected the path of a recipe, found " + describe(extends));
  std::string problem;
  const std::string expanded = expand_variables(*text, problem);
  if (!problem.empty()) throw fail(in_quotes(*text) + ": " + problem);
  return (fs::path(file).parent_path() / expanded).lexically_normal().string();
}

std::string identity(const std::string& file) {
  std::error_code error;
  const fs::path path = fs::weakly_canonical(file, error);
  return error ? file : path.string();
}

Node read_chain(const std::string& file, std::vector<std::string>& readers) {
  // A recipe of a stranger may name any file as its base: what is in one that is none is not for a message.
  const bool shown = readers.empty() || file.ends_with(".toml");
  Node root = parse_toml(read_file(file, kMaxBytes, "recipe"), file, shown);
  auto& entries = std::get<Node::Entries>(root.data);
  const auto extends = std::find_if(entries.begin(), entries.end(), [](const Entry& e) { return e.key == "extends"; });
  if (extends == entries.end()) return root;
  const Node named = extends->value;
  entries.erase(extends);
  const std::string base = base_file(named, file);
  const auto fail = [&](const std::string& message) {
    return Error(ExitCode::bad_recipe, named.position.text() + ": extends: " + message);
  };
  readers.push_back(identity(file));
  if (std::find(readers.begin(), readers.end(), identity(base)) != readers.end()) {
    throw fail(in_quotes(base) + " extends itself");
  }
  if (readers.size() > kMaxBases) throw fail("more than " + std::to_string(kMaxBases) + " recipes in a row");
  const std::string missing = missing_path(absolute_path(base, {}, true));
  if (!missing.empty()) throw fail(missing);
  Node merged = read_chain(base, readers);
  merge(merged, std::move(root));
  return merged;
}

/// The next part of a dotted key, taken off `key`.
std::string take_part(std::string& key) {
  const std::size_t dot = key.find('.');
  std::string part = key.substr(0, dot);
  key = dot == std::string::npos ? std::string() : key.substr(dot + 1);
  return part;
}

/// Steps from `node` to its part; makes tables on the way. nullptr after reporting.
Node* step_into(Node* node, const std::string& part, const SourcePosition& position, Problems& problems) {
  if (auto* items = std::get_if<Node::List>(&node->data)) {
    std::size_t index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    if (error != std::errc{} || end != part.data() + part.size()) {
      problems.add(position, in_quotes(part) + " stands for an item of a list: write its number, counted from 0");
      return nullptr;
    }
    if (index < items->size()) return &(*items)[index];
    problems.add(position, "there is no item " + part + ", the list has " + std::to_string(items->size()));
    return nullptr;
  }
  if (!node->is_table()) {
    problems.add(position, in_quotes(part) + " stands below a value that is no table: " + describe(*node));
    return nullptr;
  }
  if (Node* known = node->find(part)) return known;
  auto& entries = std::get<Node::Entries>(node->data);
  entries.push_back({part, position, Node{Node::Entries{}, position}});
  return &entries.back().value;
}

void apply(Node& root, const std::string& text, Problems& problems) {
  const std::size_t equals = text.find('=');
  const SourcePosition position{"--set " + text, 0, 0};
  std::string key = text.substr(0, equals);
  const bool malformed = key.empty() || key.front() == '.' || key.back() == '.' ||
                         key.find("..") != std::string::npos || std::count(key.begin(), key.end(), '.') > 16;
  if (equals == std::string::npos || malformed) {
    problems.add(position, "expected KEY=VALUE, for example --set optimizer.lr=2e-4");
    return;
  }
  try {
    Node value = parse_override_value(text.substr(equals + 1), position);
    Node* node = &root;
    while (node != nullptr && !key.empty()) node = step_into(node, take_part(key), position, problems);
    if (node != nullptr) *node = std::move(value);
  } catch (const Error& error) {
    problems.add(position, error.what());
  }
}

}  // namespace

Node read_with_bases(const std::string& file) {
  std::vector<std::string> readers;
  return read_chain(file, readers);
}

Node read_stored(const std::string& text, const std::string& name) {
  if (text.size() > kMaxBytes)
    throw Error(ExitCode::bad_input, name + " is larger than " + std::to_string(kMaxBytes) + " bytes");
  Node root = parse_toml(text, name);
  if (const Node* extends = root.find("extends"))
    throw Error(ExitCode::bad_recipe,
                extends->position.text() + ": extends: a stored recipe is complete and extends no other");
  return root;
}

void apply_overrides(Node& root, std::span<const std::string> overrides, Problems& problems) {
  for (const std::string& text : overrides) apply(root, text, problems);
}

}  // namespace trainer::recipe
