/// @file Joins the rows of a section's schema with the members of its struct: one table per section gives the keys,
/// types, defaults (the member's initialiser), ranges and help, and moves values in and out.
#pragma once

#include <recipe/recipe.hpp>
#include <recipe/schema.hpp>

#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace trainer::recipe {

template <typename Struct>
using Member =
    std::variant<bool Struct::*, int64_t Struct::*, double Struct::*, std::string Struct::*,
                 std::vector<int64_t> Struct::*, std::vector<double> Struct::*, std::vector<std::string> Struct::*>;

template <typename Struct>
struct Field {
  OptionSpec spec;
  Member<Struct> member;
};

template <typename T>
constexpr unsigned kTypeOf = 0;
template <>
inline constexpr unsigned kTypeOf<bool> = kBool;
template <>
inline constexpr unsigned kTypeOf<int64_t> = kInt;
template <>
inline constexpr unsigned kTypeOf<double> = kFloat;
template <>
inline constexpr unsigned kTypeOf<std::string> = kString;
template <>
inline constexpr unsigned kTypeOf<std::vector<int64_t>> = kIntList;
template <>
inline constexpr unsigned kTypeOf<std::vector<double>> = kFloatList;
template <>
inline constexpr unsigned kTypeOf<std::vector<std::string>> = kStringList;

template <typename T>
Value to_value(const T& data) {
  return {data};
}
template <typename T>
Value to_value(const std::vector<T>& items) {
  Array array;
  for (const T& item : items) array.push_back({item});
  return {std::move(array)};
}

/// Moves a checked value into a member; an empty value (it was refused) leaves the default. A single value fills a
/// list.
template <typename T>
void assign(T& target, const Value& value) {
  if (const T* data = value.get_if<T>()) target = *data;
}
template <typename T>
void assign(std::vector<T>& target, const Value& value) {
  if (value.empty()) return;
  target.clear();
  if (const T* single = value.get_if<T>()) target.push_back(*single);
  if (const Array* items = value.get_if<Array>()) {
    for (const Value& item : *items) target.push_back(std::get<T>(item.data));
  }
}

/// A row whose type and default come from the member, unless the row states them.
template <typename Struct, typename T>
Field<Struct> field(T Struct::*member, OptionSpec spec) {
  if (spec.type == 0) spec.type = kTypeOf<T>;
  const Struct defaults{};
  if (spec.fallback.empty() && !spec.required) spec.fallback = to_value(defaults.*member);
  return {std::move(spec), member};
}

template <typename Struct>
void assign_fields(Struct& target, const std::vector<Field<Struct>>& fields, const Table& values) {
  for (const Field<Struct>& field : fields) {
    const auto value = values.find(field.spec.key);
    if (value == values.end()) continue;
    std::visit([&](auto member) { assign(target.*member, value->second); }, field.member);
  }
}

/// The value of a member in the shortest form its row allows (a list of one as a single value).
template <typename Struct>
Value field_value(const Struct& source, const Field<Struct>& field) {
  Value value = std::visit([&](auto member) { return to_value(source.*member); }, field.member);
  constexpr unsigned kScalars = kInt | kFloat | kString;
  if (const Array* items = value.get_if<Array>();
      items != nullptr && items->size() == 1 && (field.spec.type & kScalars)) {
    return Value(items->front());
  }
  return value;
}

template <typename Struct>
std::vector<OptionSpec> specs_of(const std::vector<Field<Struct>>& fields) {
  std::vector<OptionSpec> specs;
  for (const Field<Struct>& field : fields) specs.push_back(field.spec);
  return specs;
}

/// The sections' tables (sections_*.cpp).
const std::vector<Field<Run>>& run_fields();
const std::vector<Field<Component>>& model_fields();
const std::vector<Field<Component>>& text_encoder_fields();
const std::vector<Field<Component>>& autoencoder_fields();
const std::vector<Field<Component>>& adapter_fields();
const std::vector<Field<Component>>& objective_fields();
const std::vector<Field<Placement>>& placement_fields();
const std::vector<Field<Data>>& data_fields();
const std::vector<Field<Train>>& train_fields();
const std::vector<Field<Optimizer>>& optimizer_fields();
const std::vector<Field<Memory>>& memory_fields();
const std::vector<Field<Sample>>& sample_fields();
const std::vector<Field<Validation>>& validation_fields();
const std::vector<Field<Checkpoint>>& checkpoint_fields();
const std::vector<Field<Cache>>& cache_fields();
const std::vector<Field<Metrics>>& metrics_fields();
const std::vector<Field<Distributed>>& distributed_fields();

}  // namespace trainer::recipe
