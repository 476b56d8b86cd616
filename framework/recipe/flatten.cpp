#include <recipe/fields.hpp>
#include <recipe/load.hpp>
#include <recipe/paths.hpp>
#include <recipe/rules.hpp>
#include <recipe/write.hpp>

#include <algorithm>
#include <map>

namespace trainer::recipe {
namespace {

struct FlatSection {
  std::string name;                                         ///< "data.0"
  std::string header;                                       ///< "[[data]]"
  std::vector<std::pair<std::string, std::string>> values;  ///< key within the section, TOML text
};

class Flattener {
 public:
  Flattener(const Recipe& recipe, PathStyle paths) : recipe_(recipe), paths_(paths) {}

  std::vector<FlatSection> flatten() {
    add("run", recipe_.run, run_fields());
    add_component("model", recipe_.model, model_fields());
    add_component("text_encoder", recipe_.text_encoder, text_encoder_fields());
    if (recipe_.pictures()) add_component("autoencoder", recipe_.autoencoder, autoencoder_fields());
    for (std::size_t i = 0; i < recipe_.data.size(); ++i) {
      add("data." + std::to_string(i), recipe_.data[i], data_fields());
      all_.back().header = "[[data]]";
      if (!recipe_.pictures())
        std::erase_if(all_.back().values, [](const auto& value) {
          return std::find(kPictureKeys.begin(), kPictureKeys.end(), value.first) != kPictureKeys.end();
        });
    }
    add("train", recipe_.train, train_fields());
    if (recipe_.adapter) add_component("adapter", *recipe_.adapter, adapter_fields());
    add_component("objective", recipe_.objective, objective_fields());
    add("optimizer", recipe_.optimizer, optimizer_fields());
    add("memory", recipe_.memory, memory_fields());
    for (const Component& strategy : recipe_.memory.components) {
      open("memory." + strategy.kind);
      add_options(strategy.options);
    }
    add_component("placement", recipe_.placement, placement_fields());
    add("sample", recipe_.sample, sample_fields());
    if (recipe_.validates()) add("validation", recipe_.validation, validation_fields());
    add("checkpoint", recipe_.checkpoint, checkpoint_fields());
    add("cache", recipe_.cache, cache_fields());
    add("metrics", recipe_.metrics, metrics_fields());
    add("distributed", recipe_.distributed, distributed_fields());
    return std::move(all_);
  }

 private:
  void open(const std::string& name) { all_.push_back({name, "[" + name + "]", {}}); }

  template <typename Struct>
  void add(const std::string& section, const Struct& source, const std::vector<Field<Struct>>& fields) {
    open(section);
    for (const Field<Struct>& field : fields) {
      const Value value = field_value(source, field);
      if (field.spec.type == kPath)
        add_path(field.spec.key, std::get<std::string>(value.data));
      else if (field.spec.type == kBytes)
        add_bytes(field.spec.key, std::get<int64_t>(value.data));
      else
        add_value(field.spec.key, value);
    }
  }

  template <typename Struct>
  void add_component(const std::string& section, const Struct& source, const std::vector<Field<Struct>>& fields) {
    add(section, source, fields);
    add_options(source.options);
  }

  void add_options(const Options& options) {
    for (const auto& [key, value] : options.values()) {
      const auto* text = value.get_if<std::string>();
      if (text != nullptr && recipe_.paths_as_written.count(all_.back().name + "." + key) != 0)
        add_path(key, *text);
      else
        add_value(key, value);
    }
  }

  void add_value(const std::string& key, const Value& value) {
    if (!value.empty()) all_.back().values.emplace_back(key, toml_text(value));
  }

  void add_bytes(const std::string& key, int64_t bytes) {
    if (bytes != 0) all_.back().values.emplace_back(key, in_quotes(bytes_text(bytes)));
  }

  void add_path(const std::string& key, const std::string& path) {
    const auto written = recipe_.paths_as_written.find(all_.back().name + "." + key);
    if (paths_ == PathStyle::as_written) {
      if (written != recipe_.paths_as_written.end()) all_.back().values.emplace_back(key, in_quotes(written->second));
    } else if (!path.empty()) {
      all_.back().values.emplace_back(key, in_quotes(escaped_path(path)));
    }
  }

  const Recipe& recipe_;
  const PathStyle paths_;
  std::vector<FlatSection> all_;
};

}  // namespace

std::string to_toml(const Recipe& recipe, PathStyle paths) {
  std::string out;
  for (const FlatSection& section : Flattener(recipe, paths).flatten()) {
    if (!out.empty()) out += '\n';
    out += section.header + '\n';
    for (const auto& [key, text] : section.values) out += toml_key(key) + " = " + text + '\n';
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> flatten(const Recipe& recipe, PathStyle paths) {
  std::vector<std::pair<std::string, std::string>> out;
  for (FlatSection& section : Flattener(recipe, paths).flatten()) {
    for (auto& [key, text] : section.values) out.emplace_back(section.name + "." + key, std::move(text));
  }
  return out;
}

std::vector<Difference> differences(const Recipe& first, const Recipe& second) {
  const auto mine = flatten(first), others = flatten(second);
  const std::map<std::string, std::string> in_first(mine.begin(), mine.end()), in_second(others.begin(), others.end());
  std::vector<Difference> out;
  for (const auto& [key, text] : mine) {
    const auto other = in_second.find(key);
    const std::string their = other == in_second.end() ? std::string() : other->second;
    if (text != their) out.push_back({key, text, their});
  }
  for (const auto& [key, text] : others) {
    if (in_first.count(key) == 0) out.push_back({key, "", text});
  }
  return out;
}

}  // namespace trainer::recipe
