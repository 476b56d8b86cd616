#include <recipe/values.hpp>

#include <base/printable.hpp>
#include <base/units.hpp>
#include <base/utf8.hpp>
#include <recipe/paths.hpp>
#include <recipe/write.hpp>
#include <trainer/sdk/names.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

namespace trainer::recipe {
namespace {

std::string plain_number(double number) {
  const bool whole = std::abs(number) < 1e15 && std::floor(number) == number;
  return whole ? std::to_string(static_cast<int64_t>(number)) : number_text(number);
}

std::string list_of(std::span<const std::string> names) {
  std::string out, separator;
  for (const std::string& name : names) out += std::exchange(separator, ", ") + in_quotes(name);
  return out;
}

/// One value in the making: where it is, what it is called, whether something was wrong.
class Reader {
 public:
  Reader(const OptionSpec& spec, Reading& reading) : spec_(spec), reading_(reading) {}

  Value read(const Node& node, const std::string& key) {
    if (const auto* items = node.get_if<Node::List>(); items != nullptr && (spec_.type & kLists) != 0) {
      return read_list(node, *items, key);
    }
    return read_scalar(node, key, spec_.type & ~kLists);
  }

 private:
  static constexpr unsigned kLists = kIntList | kFloatList | kStringList;

  Value fail(const Node& node, const std::string& key, const std::string& message) {
    reading_.problems.add(node.position, key + ": " + message);
    return {};
  }

  Value read_list(const Node& node, const Node::List& items, const std::string& key) {
    if (items.size() < spec_.min_items || (spec_.max_items != 0 && items.size() > spec_.max_items)) {
      std::string wanted = std::to_string(spec_.min_items);
      if (spec_.max_items == 0)
        wanted = "at least " + wanted;
      else if (spec_.max_items != spec_.min_items)
        wanted += " to " + std::to_string(spec_.max_items);
      const bool one = spec_.min_items == 1 && (spec_.max_items == 1 || spec_.max_items == 0);
      return fail(node, key,
                  "expected " + wanted + (one ? " item" : " items") + ", found " + std::to_string(items.size()));
    }
    unsigned item_type = 0;
    if ((spec_.type & kIntList) != 0) item_type |= kInt;
    if ((spec_.type & kFloatList) != 0) item_type |= kFloat;
    if ((spec_.type & kStringList) != 0) item_type |= kString;
    Array values;
    bool complete = true;
    in_list_ = true;
    for (std::size_t i = 0; i < items.size(); ++i) {
      values.push_back(read_scalar(items[i], key + "[" + std::to_string(i) + "]", item_type));
      complete = complete && !values.back().empty();
    }
    return complete ? Value{std::move(values)} : Value{};
  }

  Value read_scalar(const Node& node, const std::string& key, unsigned type) {
    if (const auto* boolean = node.get_if<bool>(); boolean != nullptr && (type & kBool) != 0) return {*boolean};
    if (const auto* integer = node.get_if<int64_t>()) {
      if ((type & kInt) != 0) return read_integer(node, *integer, key);
      if ((type & kFloat) != 0) return read_number(node, static_cast<double>(*integer), key);
      if ((type & kBytes) != 0 && *integer >= 0) return {*integer};
    }
    if (const auto* number = node.get_if<double>(); number != nullptr && (type & kFloat) != 0) {
      return read_number(node, *number, key);
    }
    if (const auto* text = node.get_if<std::string>()) {
      if ((type & kPath) != 0) return read_path(node, *text, key);
      if ((type & kBytes) != 0) return read_bytes(node, *text, key);
      if ((type & kString) != 0) return read_string(node, *text, key);
    }
    return fail(node, key, "expected " + type_in_words(in_list_ ? type : spec_.type) + ", found " + describe(node));
  }

  Value read_integer(const Node& node, int64_t integer, const std::string& key) {
    if (!in_range(node, static_cast<double>(integer), key)) return {};
    if (spec_.multiple_of != 0 && integer % spec_.multiple_of != 0) {
      return fail(node, key, std::to_string(integer) + " is not a multiple of " + std::to_string(spec_.multiple_of));
    }
    return {integer};
  }

  Value read_number(const Node& node, double number, const std::string& key) {
    if (!std::isfinite(number)) return fail(node, key, "expected a finite number, found " + describe(node));
    return in_range(node, number, key) ? Value{number} : Value{};
  }

  bool in_range(const Node& node, double number, const std::string& key) {
    if ((!spec_.min || number >= *spec_.min) && (!spec_.max || number <= *spec_.max) &&
        (!spec_.above || number > *spec_.above)) {
      return true;
    }
    fail(node, key, describe(node) + " is out of range, expected " + range_in_words(spec_));
    return false;
  }

  Value read_string(const Node& node, const std::string& text, const std::string& key) {
    if (text.find('\0') != std::string::npos) return fail(node, key, "the text holds a NUL character");
    // Where single words and lists are allowed, the words are the choices and the list is free.
    const bool chosen = !spec_.choices.empty() && !(in_list_ && (spec_.type & kString) != 0);
    if (chosen && std::find(spec_.choices.begin(), spec_.choices.end(), text) == spec_.choices.end()) {
      const unsigned others = in_list_ ? 0 : spec_.type & ~unsigned{kString};
      return fail(node, key,
                  "unknown value " + in_quotes(text) + did_you_mean(text, spec_.choices) +
                      "; valid: " + list_of(spec_.choices) + (others == 0 ? "" : " or " + type_in_words(others)));
    }
    if (spec_.required && text.empty()) return fail(node, key, "must not be empty");
    return {text};
  }

  Value read_path(const Node& node, const std::string& text, const std::string& key) {
    if (text.empty()) return spec_.required ? fail(node, key, "must not be empty") : Value{text};
    if (text.find('\0') != std::string::npos) return fail(node, key, "the path holds a NUL character");
    std::string problem;
    const std::string expanded = expand_variables(text, problem);
    if (!problem.empty()) return fail(node, key, in_quotes(text) + ": " + problem);
    const std::string path = absolute_path(expanded, node.position, spec_.from_working_folder);
    if (!is_utf8(path))  // checkpoints keep the recipe in JSON
      return fail(node, key,
                  "the path \"" + printable(path) + "\" is not UTF-8: rename the folder, or name a link to it");
    const LoadOptions& options = reading_.options;
    if (spec_.must_exist && (options.paths_must_exist || (options.model_must_exist && key.starts_with("model.")))) {
      if (const std::string missing = missing_path(path); !missing.empty()) return fail(node, key, missing);
    }
    reading_.paths_as_written[key] = text;
    return {path};
  }

  Value read_bytes(const Node& node, const std::string& text, const std::string& key) {
    if (const auto bytes = parse_bytes(text)) return {*bytes};
    return fail(node, key, "expected an amount of memory like \"22GB\" or \"512 MiB\", found " + in_quotes(text));
  }

  const OptionSpec& spec_;
  Reading& reading_;
  bool in_list_ = false;
};

/// Reads the entries of a table and of its sub-tables ("schedule.kind" may be written either way).
class TableReader {
 public:
  TableReader(const std::string& section, std::span<const OptionSpec* const> specs, std::span<const std::string> others,
              Reading& reading)
      : section_(section), specs_(specs), others_(others), reading_(reading) {}

  void read(const Node& table, const std::string& prefix) {
    for (const Entry& entry : std::get<Node::Entries>(table.data)) {
      const std::string key = prefix + entry.key;
      if (prefix.empty() && std::find(others_.begin(), others_.end(), key) != others_.end()) continue;
      if (const OptionSpec* spec = find(key)) {
        read_entry(entry, key, *spec);
      } else if (is_sub_table(key)) {
        if (entry.value.is_table())
          read(entry.value, key + ".");
        else
          reading_.problems.add(entry.value.position, full(key) + ": expected a table with " + keys_below(key + ".") +
                                                          ", found " + describe(entry.value));
      } else {
        report_unknown(entry, key);
      }
    }
  }

  Table finish(const SourcePosition& position, bool report_missing) {
    const auto path = values_.find("path");
    const auto* file = path == values_.end() ? nullptr : path->second.get_if<std::string>();
    const bool from_file = file != nullptr && !file->empty();
    for (const OptionSpec* spec : specs_) {
      if (given_.count(spec->key) != 0) continue;
      if (spec->required && report_missing) {
        reading_.problems.add(position, "missing key " + in_quotes(full(spec->key)) + ": " + spec->help);
      }
      values_[spec->key] = spec->in_file && from_file ? Value{} : spec->fallback;
    }
    for (const OptionSpec* spec : specs_) {
      if (!spec->same_as.empty() && given_.count(spec->key) == 0) {
        Value value = values_[spec->same_as];
        const auto* integer = value.get_if<int64_t>();
        if (integer != nullptr && (spec->type & kInt) == 0) value = {static_cast<double>(*integer)};
        values_[spec->key] = std::move(value);
      }
    }
    return std::move(values_);
  }

 private:
  std::string full(const std::string& key) const { return section_.empty() ? key : section_ + "." + key; }

  const OptionSpec* find(const std::string& key) const {
    for (const OptionSpec* spec : specs_) {
      if (spec->key == key || (!spec->alias.empty() && spec->alias == key)) return spec;
    }
    return nullptr;
  }

  bool is_sub_table(const std::string& key) const {
    return std::any_of(specs_.begin(), specs_.end(),
                       [&](const OptionSpec* spec) { return spec->key.starts_with(key + "."); });
  }

  std::string keys_below(const std::string& prefix) const {
    std::string out, separator;
    for (const OptionSpec* spec : specs_) {
      if (spec->key.starts_with(prefix)) out += std::exchange(separator, ", ") + spec->key.substr(prefix.size());
    }
    return out;
  }

  void read_entry(const Entry& entry, const std::string& key, const OptionSpec& spec) {
    if (const auto [it, first] = given_.emplace(spec.key, key); !first) {
      reading_.problems.add(entry.position,
                            full(key) + ": " + in_quotes(full(it->second)) + " is given too; they are the same key");
      return;
    }
    values_[spec.key] = read_value(entry.value, spec, full(key), reading_);
  }

  void report_unknown(const Entry& entry, const std::string& key) {
    std::vector<std::string> own;
    for (const OptionSpec* spec : specs_) own.push_back(full(spec->key));
    for (const std::string& other : others_) own.push_back(full(other));
    std::string hint = did_you_mean(full(key), own);
    if (hint.empty()) hint = did_you_mean(full(key), reading_.known_keys);
    if (hint.empty() && !own.empty()) hint = "; keys of [" + section_ + "]: " + keys_below("");
    reading_.problems.add(entry.position, "unknown key " + in_quotes(full(key)) + hint);
  }

  const std::string& section_;
  std::span<const OptionSpec* const> specs_;
  std::span<const std::string> others_;
  Reading& reading_;
  Table values_;
  std::map<std::string, std::string> given_;  // key of the schema -> as written (an alias)
};

}  // namespace

std::string range_in_words(const OptionSpec& spec) {
  std::string low;
  if (spec.min && spec.max) return plain_number(*spec.min) + " to " + plain_number(*spec.max);
  if (spec.min) low = "at least " + plain_number(*spec.min);
  if (spec.above) low = "above " + plain_number(*spec.above);
  if (!spec.max) return low;
  return low + (low.empty() ? "at most " : ", at most ") + plain_number(*spec.max);
}

Value read_value(const Node& node, const OptionSpec& spec, const std::string& full_key, Reading& reading) {
  return Reader(spec, reading).read(node, full_key);
}

Table read_table(const Node* node, const SourcePosition& position, const std::string& section,
                 std::span<const OptionSpec* const> specs, std::span<const std::string> others, Reading& reading) {
  TableReader reader(section, specs, others, reading);
  if (node != nullptr && node->is_table()) {
    reader.read(*node, "");
  } else if (node != nullptr) {
    reading.problems.add(node->position, section + ": expected a table, found " + describe(*node));
  }
  return reader.finish(position, node == nullptr || node->is_table());
}

}  // namespace trainer::recipe
