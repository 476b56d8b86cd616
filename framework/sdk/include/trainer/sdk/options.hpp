/// @file What a component can be told: the schema of its recipe keys, and the read-only values it is made from.
///
/// The schema of a plugin stands in its manifest (`[[option]]`), so that recipes are checked and documented without
/// opening the library (docs/adr/0002-options-in-the-manifest.md). Values arrive complete: every key of the schema is
/// present with the user's value or the default, already checked for type and range.
#pragma once

#include <trainer/sdk/error.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace trainer {

/// A value of a recipe. A table is a map; `std::monostate` stands for "not given, no default".
struct Value;
using Array = std::vector<Value>;
using Table = std::map<std::string, Value, std::less<>>;
struct Value {
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Table> data;

  [[nodiscard]] bool empty() const { return std::holds_alternative<std::monostate>(data); }
  template <typename T>
  [[nodiscard]] const T* get_if() const {
    return std::get_if<T>(&data);
  }
};

/// Read-only view of one component's options. `T` is bool, int64_t, double, std::string, Array or Table; an integer
/// also reads as double. Reading a key the schema does not declare is a defect of the plugin and throws.
class TRAINER_API Options {
 public:
  Options() = default;
  Options(std::string section, Table values) : section_(std::move(section)), values_(std::move(values)) {}

  /// The recipe section the values come from, e.g. "model" or "memory.selective_checkpointing"; for messages.
  [[nodiscard]] const std::string& section() const { return section_; }
  [[nodiscard]] bool has(std::string_view key) const {
    const auto it = values_.find(key);
    return it != values_.end() && !it->second.empty();
  }
  template <typename T>
  [[nodiscard]] T get(std::string_view key) const {
    const Value& value = at(key);
    if (const T* typed = value.get_if<T>()) return *typed;
    if constexpr (std::is_same_v<T, double>) {
      if (const auto* integer = value.get_if<int64_t>()) return static_cast<double>(*integer);
    }
    throw Error(ExitCode::bad_recipe, "key \"" + full(key) + "\" has another type than the plugin reads");
  }
  template <typename T>
  [[nodiscard]] T get_or(std::string_view key, T otherwise) const {
    return has(key) ? get<T>(key) : otherwise;
  }
  /// A list of strings, integers or numbers.
  template <typename T>
  [[nodiscard]] std::vector<T> list(std::string_view key) const {
    std::vector<T> items;
    for (const Value& item : get<Array>(key)) {
      const T* typed = item.get_if<T>();
      if (typed == nullptr) throw Error(ExitCode::bad_recipe, "a list item of \"" + full(key) + "\" has another type");
      items.push_back(*typed);
    }
    return items;
  }
  [[nodiscard]] const Table& values() const { return values_; }

 private:
  [[nodiscard]] std::string full(std::string_view key) const { return section_ + "." + std::string(key); }
  [[nodiscard]] const Value& at(std::string_view key) const {
    const auto it = values_.find(key);
    if (it == values_.end()) throw Error(ExitCode::failed, "the manifest declares no option \"" + full(key) + "\"");
    return it->second;
  }
  std::string section_;
  Table values_;
};

}  // namespace trainer
