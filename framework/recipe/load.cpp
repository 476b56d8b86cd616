#include <recipe/load.hpp>

#include <recipe/compose.hpp>
#include <recipe/fields.hpp>
#include <recipe/locate.hpp>
#include <recipe/rules.hpp>
#include <recipe/values.hpp>
#include <recipe/write.hpp>
#include <trainer/sdk/names.hpp>

#include <algorithm>
#include <filesystem>

namespace trainer::recipe {
namespace {

std::vector<const OptionSpec*> join(const std::vector<OptionSpec>& first,
                                    const std::vector<OptionSpec>* second = nullptr) {
  std::vector<const OptionSpec*> all;
  for (const OptionSpec& spec : first) all.push_back(&spec);
  if (second != nullptr) {
    for (const OptionSpec& spec : *second) all.push_back(&spec);
  }
  return all;
}

/// Reads the merged tree into a Recipe, section by section.
class RecipeReader {
 public:
  RecipeReader(const Node& root, const ComponentList& components, Reading& reading)
      : root_(root), components_(components), reading_(reading) {
    for (const SectionSchema& section : sections()) {
      for (const OptionSpec& option : section.options) reading_.known_keys.push_back(section.name + "." + option.key);
    }
  }

  Recipe read() {
    report_unknown_sections();
    Recipe recipe;
    read_fields(recipe.run, run_fields(), "run");
    read_component(recipe.model, model_fields(), "model");
    const ComponentSchema* objective = read_component(recipe.objective, objective_fields(), "objective");
    read_component(recipe.text_encoder, text_encoder_fields(), "text_encoder");
    if (objective == nullptr || objective->needs_the("pictures"))
      read_component(recipe.autoencoder, autoencoder_fields(), "autoencoder");
    else
      refuse_autoencoder(*objective);
    read_data(recipe.data);
    read_fields(recipe.train, train_fields(), "train");
    if (has_adapter()) read_component(recipe.adapter.emplace(), adapter_fields(), "adapter");
    read_fields(recipe.optimizer, optimizer_fields(), "optimizer");
    read_memory(recipe.memory);
    read_component(recipe.placement, placement_fields(), "placement");
    read_fields(recipe.sample, sample_fields(), "sample");
    read_fields(recipe.validation, validation_fields(), "validation");
    read_fields(recipe.checkpoint, checkpoint_fields(), "checkpoint");
    read_fields(recipe.cache, cache_fields(), "cache");
    read_fields(recipe.metrics, metrics_fields(), "metrics");
    read_fields(recipe.distributed, distributed_fields(), "distributed");
    return recipe;
  }

 private:
  static const SectionSchema& schema(std::string_view name) {
    return *std::find_if(sections().begin(), sections().end(), [&](const SectionSchema& s) { return s.name == name; });
  }

  SourcePosition position_of(const Node* node) const { return node == nullptr ? root_.position : node->position; }

  /// `adapter = false` drops what a base brought.
  bool has_adapter() const {
    const Node* adapter = root_.find("adapter");
    if (adapter == nullptr) return false;
    const bool* wanted = adapter->get_if<bool>();
    return wanted == nullptr || *wanted;
  }

  void report_unknown_sections() {
    std::vector<std::string> names;
    for (const SectionSchema& section : sections()) names.push_back(section.name);
    for (const Entry& entry : std::get<Node::Entries>(root_.data)) {
      if (std::find(names.begin(), names.end(), entry.key) != names.end()) continue;
      const std::string what = entry.value.is_table() ? "unknown section " : "unknown key ";
      std::string hint = did_you_mean(entry.key, names);
      if (hint.empty()) hint = did_you_mean(entry.key, reading_.known_keys);
      reading_.problems.add(entry.position, what + in_quotes(entry.key) + hint);
    }
  }

  template <typename Struct>
  void read_fields(Struct& target, const std::vector<Field<Struct>>& fields, const std::string& section) {
    const Node* node = root_.find(section);
    const auto specs = join(schema(section).options);
    assign_fields(target, fields, read_table(node, position_of(node), section, specs, {}, reading_));
  }

  void refuse_autoencoder(const ComponentSchema& objective) {
    if (const Node* node = root_.find("autoencoder"))
      reading_.problems.add(node->position, "autoencoder: the objective " + in_quotes(objective.name) +
                                                " trains on texts, there is nothing to encode; leave the section out");
  }

  /// The keys of a section as the chosen component has them: paths of what it reads are required, others refused.
  std::vector<OptionSpec> keys_for(const SectionSchema& section, const ComponentSchema* chosen, const Node* node) {
    std::vector<OptionSpec> keys = section.options;
    if (section.component != "text_encoder" || chosen == nullptr) return keys;
    for (OptionSpec& spec : keys) {
      const std::string what = spec.key == "path" ? "weights" : spec.key;
      if (spec.key != "path" && spec.key != "tokenizer") continue;
      const bool needed = chosen->needs_the(what);
      spec.required = needed && (spec.required || !chosen->needs_the("weights"));
      if (const Node* given = node == nullptr ? nullptr : node->find(spec.key); given != nullptr && !needed)
        reading_.problems.add(given->position, section.name + "." + spec.key + ": " + in_quotes(chosen->name) +
                                                   " reads no " + what + "; leave the key out");
    }
    return keys;
  }

  /// A section that chooses a component by `kind` and holds its options. Returns the component, nullptr if unknown.
  template <typename Struct>
  const ComponentSchema* read_component(Struct& target, const std::vector<Field<Struct>>& fields,
                                        const std::string& section) {
    const Node* node = root_.find(section);
    const SectionSchema& own = schema(section);
    const ComponentSchema* chosen = choose(own, node);
    const std::vector<OptionSpec> keys = keys_for(own, chosen, node);
    std::vector<std::string> others;
    // Options of a component nobody knows cannot be checked; the unknown kind is the mistake to report.
    if (chosen == nullptr && node != nullptr && node->is_table()) {
      for (const Entry& entry : std::get<Node::Entries>(node->data)) {
        const bool known = std::any_of(own.options.begin(), own.options.end(), [&](const OptionSpec& option) {
          return option.key == entry.key || option.alias == entry.key;
        });
        if (!known) others.push_back(entry.key);
      }
    }
    const auto specs = join(keys, chosen == nullptr ? nullptr : &chosen->options);
    Table values = read_table(node, position_of(node), section, specs, others, reading_);
    assign_fields(target, fields, values);
    for (const OptionSpec& option : own.options) values.erase(option.key);
    target.options = Options(section, std::move(values));
    target.position = position_of(node);
    return chosen;
  }

  /// The schema named by the section's `kind`, or its default; nullptr after reporting.
  const ComponentSchema* choose(const SectionSchema& section, const Node* node) {
    const Node* kind = node == nullptr ? nullptr : node->find("kind");
    const auto* given = kind == nullptr ? nullptr : kind->get_if<std::string>();
    if (kind != nullptr && given == nullptr) return nullptr;  // a wrong type, reported with the other keys
    const std::string name = given != nullptr ? *given : std::get<std::string>(section.options.front().fallback.data);
    if (const ComponentSchema* known = components_.find(section.component, name)) return known;
    reading_.problems.add(kind == nullptr ? position_of(node) : kind->position,
                          section.name + ".kind: " + components_.unknown(section.component, name));
    return nullptr;
  }

  void read_data(std::vector<Data>& target) {
    const Node* node = root_.find("data");
    const auto* items = node == nullptr ? nullptr : node->get_if<Node::List>();
    if (items == nullptr || items->empty()) {
      const std::string found =
          node == nullptr ? "there is none" : "found " + (items ? "an empty list" : describe(*node));
      reading_.problems.add(position_of(node), "data: expected at least one [[data]] table, " + found);
      return;
    }
    const auto specs = join(schema("data").options);
    for (std::size_t i = 0; i < items->size(); ++i) {
      const Node& item = (*items)[i];
      Data& source = target.emplace_back();
      assign_fields(source, data_fields(),
                    read_table(&item, item.position, "data." + std::to_string(i), specs, {}, reading_));
      source.position = item.position;
    }
  }

  void read_memory(Memory& target) {
    const Node* node = root_.find("memory");
    std::vector<std::string> sub_tables;
    if (node != nullptr && node->is_table()) {
      for (const Entry& entry : std::get<Node::Entries>(node->data)) {
        if (entry.value.is_table()) sub_tables.push_back(entry.key);
      }
    }
    const auto specs = join(schema("memory").options);
    assign_fields(target, memory_fields(), read_table(node, position_of(node), "memory", specs, sub_tables, reading_));
    for (std::size_t i = 0; i < target.strategies.size(); ++i) read_strategy(target, node, i);
    const Node* list = node == nullptr ? nullptr : node->find("strategies");
    const auto* listed = list == nullptr ? nullptr : list->get_if<Node::List>();
    // A list with mistakes in it was reported and read as empty.
    if (list != nullptr && (listed == nullptr || listed->size() != target.strategies.size())) return;
    for (const std::string& name : sub_tables) {
      if (std::find(target.strategies.begin(), target.strategies.end(), name) != target.strategies.end()) continue;
      reading_.problems.add(node->find(name)->position,
                            "[memory." + name + "] sets options of a strategy that memory.strategies does not list" +
                                did_you_mean(name, target.strategies));
    }
  }

  void read_strategy(Memory& target, const Node* memory, std::size_t index) {
    const std::string& name = target.strategies[index];
    const std::string section = "memory." + name;
    const Node* list = memory->find("strategies");
    const SourcePosition listed = std::get<Node::List>(list->data)[index].position;
    if (std::find(target.strategies.begin(), target.strategies.begin() + static_cast<std::ptrdiff_t>(index), name) !=
        target.strategies.begin() + static_cast<std::ptrdiff_t>(index)) {
      reading_.problems.add(listed, "memory.strategies: " + in_quotes(name) + " is listed twice");
      return;
    }
    const ComponentSchema* chosen = components_.find("memory", name);
    if (chosen == nullptr) {
      reading_.problems.add(listed, "memory.strategies: " + components_.unknown("memory", name));
      return;
    }
    const Node* node = memory->find(name);
    if (node != nullptr && !node->is_table()) return;  // reported as an unknown key of [memory]
    Component& component = target.components.emplace_back();
    component.kind = name;
    component.position = node == nullptr ? listed : node->position;
    const auto specs = join(chosen->options);
    component.options = Options(section, read_table(node, component.position, section, specs, {}, reading_));
  }

  const Node& root_;
  const ComponentList& components_;
  Reading& reading_;
};

}  // namespace

ComponentList::ComponentList(std::span<const ComponentSchema> plugins) {
  for (const ComponentSchema& component : plugins) all_.push_back(&component);
}

const ComponentSchema* ComponentList::find(std::string_view kind, std::string_view name) const {
  const auto found = std::find_if(all_.begin(), all_.end(), [&](const ComponentSchema* component) {
    return component->kind == kind && component->name == name;
  });
  return found == all_.end() ? nullptr : *found;
}

std::string ComponentList::unknown(std::string_view kind, std::string_view name) const {
  std::vector<std::string> names;
  for (const ComponentSchema* component : all_) {
    if (component->kind == kind) names.push_back(component->name);
  }
  std::string list;
  for (const std::string& one : names) list += (list.empty() ? "; available: " : ", ") + one;
  const std::string what = kind == "memory"         ? "memory strategy"
                           : kind == "text_encoder" ? "text encoder"
                                                    : std::string(kind);
  return "there is no " + what + " " + in_quotes(name) + did_you_mean(name, names) +
         (list.empty() ? "; no plugin of this kind was found" : list);
}

Recipe read_tree(Node root, const std::string& file, std::span<const std::string> overrides,
                 std::span<const ComponentSchema> components, const LoadOptions& options) {
  root.position = {file, 1, 1};
  Reading reading;
  reading.options = options;
  apply_overrides(root, overrides, reading.problems);
  const ComponentList list(components);
  Recipe recipe = RecipeReader(root, list, reading).read();
  recipe.file = file;
  check_rules(recipe, root, reading.problems);
  reading.problems.throw_if_any(ExitCode::bad_recipe);
  recipe.paths_as_written = std::move(reading.paths_as_written);
  recipe.positions = positions_of(root);
  fill_in_paths(recipe);
  return recipe;
}

Recipe load(const std::string& file, std::span<const std::string> overrides,
            std::span<const ComponentSchema> components, const LoadOptions& options) {
  return read_tree(read_with_bases(file), file, overrides, components, options);
}

Recipe load_stored(const std::string& text, const std::string& name, std::span<const ComponentSchema> components) {
  return read_tree(read_stored(text, name), name, {}, components, {.paths_must_exist = false});
}

void check_syntax(const std::string& file) { read_with_bases(file); }

}  // namespace trainer::recipe
