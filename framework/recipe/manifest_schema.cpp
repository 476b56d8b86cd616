#include <recipe/document.hpp>
#include <recipe/schema.hpp>
#include <recipe/types.hpp>
#include <recipe/values.hpp>
#include <recipe/write.hpp>
#include <trainer/sdk/names.hpp>

#include <algorithm>
#include <array>

namespace trainer::recipe {
namespace {

std::vector<std::string> names_of_types() {
  std::vector<std::string> names;
  for (const TypeName& type : type_names()) names.push_back(type.name);
  return names;
}

/// The keys of an [[option]] table. `default` has the type of its option and is read apart.
const std::vector<OptionSpec>& option_keys() {
  static const std::vector<OptionSpec> keys = {
      {.key = "key", .type = kString, .required = true, .help = "the name of the option"},
      {.key = "type", .type = kString, .required = true, .help = "one of the value types"},
      {.key = "help", .type = kString, .required = true, .help = "what the option does"},
      {.key = "default_text", .type = kString},
      {.key = "same_as", .type = kString},
      {.key = "unit", .type = kString},
      {.key = "alias", .type = kString},
      {.key = "required", .type = kBool},
      {.key = "must_exist", .type = kBool},
      {.key = "in_file", .type = kBool},
      {.key = "min", .type = kFloat},
      {.key = "max", .type = kFloat},
      {.key = "above", .type = kFloat},
      {.key = "multiple_of", .type = kInt, .min = 1},
      {.key = "min_items", .type = kInt, .min = 0},
      {.key = "max_items", .type = kInt, .min = 1},
      {.key = "choices", .type = kStringList, .min_items = 1},
  };
  return keys;
}

std::vector<const OptionSpec*> pointers(const std::vector<OptionSpec>& specs) {
  std::vector<const OptionSpec*> out;
  for (const OptionSpec& spec : specs) out.push_back(&spec);
  return out;
}

/// More than this is no rounding, and no longer the same model.
constexpr double kRounding = 0.05, kDense = 0.5;

bool is_name(std::string_view text) {
  return !text.empty() && text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string_view::npos;
}

bool is_dotted_name(std::string_view text) {
  for (std::size_t dot; (dot = text.find('.')) != std::string_view::npos; text.remove_prefix(dot + 1)) {
    if (!is_name(text.substr(0, dot))) return false;
  }
  return is_name(text);
}

/// Whether a table has a (dotted) key.
bool is_given(const Node& table, std::string_view key) {
  const Node* node = &table;
  for (std::size_t dot; node != nullptr && (dot = key.find('.')) != std::string_view::npos; key.remove_prefix(dot + 1))
    node = node->find(key.substr(0, dot));
  return node != nullptr && node->find(key) != nullptr;
}

template <typename T>
T get_or(const Table& values, std::string_view key, T otherwise) {
  const auto it = values.find(key);
  const T* value = it == values.end() ? nullptr : it->second.get_if<T>();
  return value == nullptr ? otherwise : *value;
}

std::optional<double> limit(const Table& values, std::string_view key) {
  const auto it = values.find(key);
  const double* value = it == values.end() ? nullptr : it->second.get_if<double>();
  return value == nullptr ? std::nullopt : std::optional(*value);
}

/// Keys that the framework itself reads in the section of such a component.
bool is_framework_key(const std::string& kind, const std::string& key) {
  if (kind == "memory") return false;  // options of a strategy stand in a table of their own
  for (const SectionSchema& section : sections()) {
    if (section.component != kind) continue;
    for (const OptionSpec& option : section.options) {
      if (option.key == key || option.alias == key) return true;
    }
  }
  return false;
}

class ManifestReader {
 public:
  explicit ManifestReader(const Node& root) : root_(root) {}

  ComponentSchema read() {
    schema_.name = text("name");
    schema_.kind = text("kind");
    schema_.summary = text("summary");
    if (!schema_.name.empty() && !is_name(schema_.name)) {
      reading_.problems.add(root_.find("name")->position, "name: only a-z, 0-9 and _ are allowed");
    }
    check_kind();
    read_needs();
    read_tensors();
    read_options();
    reading_.problems.throw_if_any(ExitCode::plugin_rejected);  // candidates are read by the options
    read_candidates();
    read_tolerance();
    reading_.problems.throw_if_any(ExitCode::plugin_rejected);
    return std::move(schema_);
  }

 private:
  std::string text(const std::string& key) {
    const OptionSpec spec{.key = key, .type = kString, .required = true};
    if (const Node* node = root_.find(key)) {
      const Value value = read_value(*node, spec, key, reading_);
      const auto* found = value.get_if<std::string>();
      return found == nullptr ? std::string() : *found;
    }
    reading_.problems.add(root_.position, "missing key " + in_quotes(key));
    return {};
  }

  void check_kind() {
    std::vector<std::string> kinds;
    for (const SectionSchema& section : sections()) {
      if (!section.component.empty()) kinds.push_back(section.component);
    }
    if (schema_.kind.empty() || std::find(kinds.begin(), kinds.end(), schema_.kind) != kinds.end()) return;
    std::string valid;
    for (const std::string& kind : kinds) valid += (valid.empty() ? "" : ", ") + kind;
    reading_.problems.add(root_.find("kind")->position, "kind: unknown component kind " + in_quotes(schema_.kind) +
                                                            did_you_mean(schema_.kind, kinds) + "; valid: " + valid);
  }

  /// Absent: what components of the kind have always been given.
  void read_needs() {
    using Needs = std::vector<std::string>;
    const std::vector<Needs> choices = schema_.kind == "objective" ? std::vector<Needs>{{"pictures"}, {"texts"}}
                                       : schema_.kind == "text_encoder"
                                           ? std::vector<Needs>{{"weights", "tokenizer"}, {"tokenizer"}, {}}
                                           : std::vector<Needs>{{}};
    schema_.needs = choices.front();
    const Node* node = root_.find("needs");
    if (node == nullptr) return;
    const Value value = read_value(*node, {.key = "needs", .type = kStringList}, "needs", reading_);
    if (value.empty()) return;
    schema_.needs.clear();
    for (const Value& item : *value.get_if<Array>()) schema_.needs.push_back(*item.get_if<std::string>());
    if (std::find(choices.begin(), choices.end(), schema_.needs) != choices.end()) return;
    std::string valid;
    for (const Needs& choice : choices) {
      std::string list;
      for (const std::string& one : choice) list += (list.empty() ? "" : ", ") + in_quotes(one);
      valid += (valid.empty() ? "[" : " or [") + list + "]";
    }
    reading_.problems.add(node->position,
                          "needs: a component of kind " + in_quotes(schema_.kind) + " may have " + valid);
  }

  /// The ends of the names in an adapter's files.
  void read_tensors() {
    const Node* node = root_.find("tensors");
    if (node == nullptr) return;
    if (schema_.kind != "adapter")
      reading_.problems.add(node->position,
                            "tensors: only adapters write files of their own, this is " + in_quotes(schema_.kind));
    const Value value = read_value(*node, {.key = "tensors", .type = kStringList, .min_items = 1}, "tensors", reading_);
    if (value.empty()) return;
    for (const Value& item : *value.get_if<Array>()) {
      const auto& end = *item.get_if<std::string>();
      if (end.empty() || end.front() == '.' || end.back() == '.')
        reading_.problems.add(node->position, "tensors: " + in_quotes(end) +
                                                  " is not the end of a name; write \"lora_A.weight\" for the tensors "
                                                  "\"LAYER.lora_A.weight\"");
      schema_.tensors.push_back(end);
    }
  }

  void read_options() {
    const Node* options = root_.find("option");
    if (options == nullptr) return;
    const auto* items = options->get_if<Node::List>();
    if (items == nullptr) {
      reading_.problems.add(options->position,
                            "option: expected a list of tables ([[option]]), found " + describe(*options));
      return;
    }
    for (const Node& item : *items) read_option(item);
    for (const OptionSpec& option : schema_.options) {
      if (option.same_as.empty()) continue;
      const bool known = std::any_of(schema_.options.begin(), schema_.options.end(),
                                     [&](const OptionSpec& other) { return other.key == option.same_as; });
      if (!known) reading_.problems.add(options->position, "same_as of " + in_quotes(option.key) + " names no option");
    }
  }

  void read_candidates() {
    const Node* candidates = root_.find("candidate");
    if (candidates == nullptr) return;
    const auto* items = candidates->get_if<Node::List>();
    if (items == nullptr) {
      reading_.problems.add(candidates->position,
                            "candidate: expected a list of tables ([[candidate]]), found " + describe(*candidates));
      return;
    }
    if (schema_.kind != "memory")
      reading_.problems.add(candidates->position, "candidate: the planner chooses memory strategies only, this is " +
                                                      in_quotes(schema_.kind));
    for (const Node& item : *items) read_candidate(item);
  }

  void read_candidate(const Node& node) {
    Candidate candidate;
    candidate.options = read_table(&node, node.position, "candidate", pointers(schema_.options), {}, reading_);
    for (const OptionSpec& option : schema_.options)
      if (is_given(node, option.key))
        candidate.text += (candidate.text.empty() ? "" : ", ") + option.key + " = " +
                          toml_text(candidate.options.find(option.key)->second);
    for (const Candidate& other : schema_.candidates)
      if (equal({other.options}, {candidate.options})) reading_.problems.add(node.position, "candidate: given twice");
    schema_.candidates.push_back(std::move(candidate));
  }

  void read_tolerance() {
    const Node* node = root_.find("tolerance");
    if (node == nullptr) return;
    if (schema_.kind != "memory")
      reading_.problems.add(node->position, "tolerance: only memory strategies that pack weights have one, this is " +
                                                in_quotes(schema_.kind));
    const std::vector<OptionSpec> keys{
        {.key = "rounding", .type = kFloat, .fallback = Value{schema_.tolerance.rounding}, .min = 0, .max = kRounding},
        {.key = "dense", .type = kFloat, .fallback = Value{schema_.tolerance.dense}, .max = kDense, .above = 0}};
    const Table values = read_table(node, node->position, "tolerance", pointers(keys), {}, reading_);
    schema_.tolerance.rounding = get_or<double>(values, "rounding", 0);
    schema_.tolerance.dense = get_or<double>(values, "dense", schema_.tolerance.dense);
  }

  void read_option(const Node& node) {
    const std::size_t before = reading_.problems.count();
    const Table values = read_table(&node, node.position, "option", pointers(option_keys()), kApart, reading_);
    OptionSpec spec = spec_of(values);
    check_key(spec, node);
    spec.type = type_of(get_or<std::string>(values, "type", {}), node);
    if (reading_.problems.count() != before) return;
    if (const Node* fallback = node.find("default")) {
      spec.fallback = read_value(*fallback, spec, "default of " + in_quotes(spec.key), reading_);
    } else if (spec.same_as.empty() && !spec.required && (spec.type & (kPath | kString)) == 0 &&
               spec.fallback_text.empty()) {
      reading_.problems.add(node.position,
                            "option " + in_quotes(spec.key) + ": needs default, default_text, same_as or required");
    } else if (spec.same_as.empty() && !spec.required && spec.choices.empty() && (spec.type & (kPath | kString)) != 0) {
      spec.fallback = {std::string()};
    }
    if (spec.in_file && schema_.kind != "adapter")
      reading_.problems.add(node.find("in_file")->position,
                            "option " + in_quotes(spec.key) + ": only an adapter's options can stand in a file");
    schema_.options.push_back(std::move(spec));
  }

  static OptionSpec spec_of(const Table& values) {
    OptionSpec spec;
    spec.key = get_or<std::string>(values, "key", {});
    spec.fallback_text = get_or<std::string>(values, "default_text", {});
    spec.same_as = get_or<std::string>(values, "same_as", {});
    spec.unit = get_or<std::string>(values, "unit", {});
    spec.help = get_or<std::string>(values, "help", {});
    spec.alias = get_or<std::string>(values, "alias", {});
    spec.required = get_or(values, "required", false);
    spec.must_exist = get_or(values, "must_exist", false);
    spec.in_file = get_or(values, "in_file", false);
    spec.min = limit(values, "min");
    spec.max = limit(values, "max");
    spec.above = limit(values, "above");
    spec.multiple_of = get_or<int64_t>(values, "multiple_of", 0);
    spec.min_items = static_cast<std::size_t>(get_or<int64_t>(values, "min_items", 0));
    spec.max_items = static_cast<std::size_t>(get_or<int64_t>(values, "max_items", 0));
    for (const Value& choice : get_or<Array>(values, "choices", {})) {
      spec.choices.push_back(std::get<std::string>(choice.data));
    }
    return spec;
  }

  void check_key(const OptionSpec& spec, const Node& node) {
    if (spec.key.empty()) return;
    const SourcePosition& position = node.find("key")->position;
    if (!is_dotted_name(spec.key)) {
      reading_.problems.add(position,
                            "option " + in_quotes(spec.key) + ": only a-z, 0-9, _ and . between names are allowed");
    } else if (is_framework_key(schema_.kind, spec.key)) {
      reading_.problems.add(position, "option " + in_quotes(spec.key) + ": the framework reads this key of [" +
                                          schema_.kind + "]; a plugin does not declare it");
    }
    for (const OptionSpec& other : schema_.options) {
      if (other.key == spec.key) reading_.problems.add(position, "option " + in_quotes(spec.key) + ": declared twice");
      if (other.key.starts_with(spec.key + ".") || spec.key.starts_with(other.key + ".")) {
        reading_.problems.add(position, "option " + in_quotes(spec.key) + ": " + in_quotes(other.key) +
                                            " makes it both a table and a value");
      }
    }
  }

  unsigned type_of(std::string_view text, const Node& node) {
    unsigned type = 0;
    while (!text.empty()) {
      const std::string_view name = text.substr(0, text.find('|'));
      text.remove_prefix(std::min(name.size() + 1, text.size()));
      const auto known = std::find_if(type_names().begin(), type_names().end(),
                                      [&](const TypeName& type_name) { return type_name.name == name; });
      if (known == type_names().end()) {
        std::string valid;
        for (const std::string& one : names_of_types()) valid += (valid.empty() ? "" : ", ") + one;
        reading_.problems.add(
            node.find("type")->position,
            "type: unknown value type " + in_quotes(name) + did_you_mean(name, names_of_types()) + "; valid: " + valid);
        return 0;
      }
      type |= known->type;
    }
    return type;
  }

  static inline const std::vector<std::string> kApart = {"default"};
  const Node& root_;
  Reading reading_;
  ComponentSchema schema_;
};

}  // namespace

bool ComponentSchema::needs_the(std::string_view what) const {
  return std::find(needs.begin(), needs.end(), what) != needs.end();
}

ComponentSchema parse_component_schema(std::string_view manifest, const std::string& file) {
  try {
    return ManifestReader(parse_toml(manifest, file)).read();
  } catch (const Error& error) {
    throw Error(ExitCode::plugin_rejected, error.what());
  }
}

}  // namespace trainer::recipe
