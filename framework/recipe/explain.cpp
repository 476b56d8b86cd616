#include <recipe/describe.hpp>
#include <recipe/reference.hpp>
#include <recipe/rules.hpp>
#include <recipe/values.hpp>
#include <recipe/write.hpp>

#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>

#include <algorithm>
#include <utility>

namespace trainer::recipe {
namespace {

/// A key as it may be asked for.
struct Known {
  std::string name;  ///< "optimizer.lr"
  const OptionSpec* spec;
  const ComponentSchema* component;  ///< the component it belongs to, or nullptr
};

std::string component_section(const ComponentSchema& component) {
  return component.kind == "memory" ? "memory." + component.name : component.kind;
}

std::vector<Known> known_keys(const ComponentList& components) {
  std::vector<Known> keys;
  for (const SectionSchema& section : sections()) {
    for (const OptionSpec& option : section.options) {
      keys.push_back({section.name + "." + option.key, &option, nullptr});
      if (!option.alias.empty()) keys.push_back({section.name + "." + option.alias, &option, nullptr});
    }
  }
  for (const ComponentSchema* component : components.all()) {
    for (const OptionSpec& option : component->options) {
      keys.push_back({component_section(*component) + "." + option.key, &option, component});
    }
  }
  return keys;
}

std::string explain_key(const Known& known) {
  const OptionSpec& spec = *known.spec;
  std::string text = known.name + "\n  " + spec.help + "\n";
  if (!spec.alias.empty()) text += "  also:    " + spec.alias + "\n";
  text += "  type:    " + type_in_words(spec.type) + (spec.unit.empty() ? "" : ", in " + spec.unit) + "\n";
  text += "  default: " + default_in_words(spec, "") + "\n";
  if (const std::string limits = limits_in_words(spec, ""); !limits.empty()) text += "  valid:   " + limits + "\n";
  if (known.component != nullptr) {
    text += "  of:      " + known.component->kind + " " + in_quotes(known.component->name) + "\n";
  }
  return text;
}

/// Up to a full stop that a capital follows: one within "e.g. 8" or "Karras et al. 2022" ends no sentence.
std::string first_sentence(const std::string& text) {
  std::size_t end = text.find(". ");
  while (end != std::string::npos && end + 2 < text.size() && !(text[end + 2] >= 'A' && text[end + 2] <= 'Z'))
    end = text.find(". ", end + 1);
  return text.substr(0, end);
}

std::string key_list(const std::vector<OptionSpec>& options) {
  std::size_t width = 0;
  for (const OptionSpec& option : options) width = std::max(width, option.key.size());
  std::string text;
  for (const OptionSpec& option : options) {
    text += "  " + option.key + std::string(width + 2 - option.key.size(), ' ') + first_sentence(option.help) + "\n";
  }
  return text;
}

std::string explain_component(const ComponentSchema& component) {
  std::string text = component.kind + " " + in_quotes(component.name) + "\n  " + component.summary + "\n";
  text += component.options.empty() ? "  no options\n" : key_list(component.options);
  const std::string chosen = candidates_in_words(component, "");
  return chosen.empty() ? text : text + "  memory.budget may choose it with: " + chosen + "\n";
}

std::string explain_section(const SectionSchema& section, const ComponentList& components) {
  std::string text = section.repeated ? "[[" + section.name + "]]" : "[" + section.name + "]";
  text += "\n  " + section.summary + "\n" + key_list(section.options);
  for (const ComponentSchema* component : components.all()) {
    if (component->kind == section.component) text += "\n" + explain_component(*component);
  }
  return text;
}

std::string explain_all(const ComponentList& components) {
  std::string text = "Sections of a recipe, with the components that may stand there:\n";
  for (const SectionSchema& section : sections()) {
    std::string named;
    for (const ComponentSchema* component : components.all())
      if (component->kind == section.component) named += (named.empty() ? "" : ", ") + component->name;
    const std::string name = section.repeated ? "[[" + section.name + "]]" : "[" + section.name + "]";
    text += "  " + name + std::string(name.size() < 17 ? 17 - name.size() : 1, ' ') + first_sentence(section.summary) +
            "\n" + (named.empty() ? "" : std::string(19, ' ') + named + "\n");
  }
  return text + "`trainer explain NAME` shows the keys of one, `trainer explain SECTION.KEY` a key.\n";
}

/// "data.0.folder" is asked for as "data.folder".
std::string without_number(std::string_view key) {
  std::string out(key);
  if (!out.starts_with("data.") || out.size() < 6) return out;
  const std::size_t end = std::min(out.find('.', 5), out.size());
  const bool number = out.find_first_not_of("0123456789", 5) >= end && end > 5;
  return number ? "data" + out.substr(end) : out;
}

}  // namespace

std::string default_in_words(const OptionSpec& spec, const std::string& quote) {
  if (spec.required) return "none, must be given";
  if (!spec.same_as.empty()) return "the value of " + quote + spec.same_as + quote;
  if (!spec.fallback_text.empty()) return spec.fallback_text;
  if (spec.fallback.empty()) return "none";
  const auto* text = spec.fallback.get_if<std::string>();
  if (text != nullptr && text->empty()) return "empty";
  return quote + toml_text(spec.fallback) + quote + (spec.in_file ? "; with a file in path what the file says" : "");
}

std::string limits_in_words(const OptionSpec& spec, const std::string& quote) {
  std::string out, separator;
  const auto add = [&](const std::string& text) {
    if (!text.empty()) out += std::exchange(separator, "; ") + text;
  };
  add(range_in_words(spec));
  if (spec.multiple_of != 0) add("multiples of " + std::to_string(spec.multiple_of));
  std::string items = std::to_string(spec.min_items);
  if (spec.max_items == 0)
    items = spec.min_items == 0 ? "" : "at least " + items;
  else if (spec.max_items != spec.min_items)
    items += " to " + std::to_string(spec.max_items);
  if (!items.empty()) add(items + (items.ends_with(" 1") ? " item" : " items"));
  std::string choices;
  for (const std::string& choice : spec.choices)
    choices += (choices.empty() ? "" : ", ") + quote + in_quotes(choice) + quote;
  const unsigned others = (spec.type & kString) != 0 ? spec.type & ~unsigned{kString} : 0;
  if (!choices.empty() && others != 0) choices += " or " + type_in_words(others);
  add(choices);
  return out;
}

std::string candidates_in_words(const ComponentSchema& component, const std::string& quote) {
  std::string text;
  for (const Candidate& candidate : component.candidates)
    text += (text.empty() ? "" : "; ") + (candidate.text.empty() ? "its defaults" : quote + candidate.text + quote);
  return text;
}

namespace {

/// " (known in [optimizer]: lr, ...)" for a key of a section that is known, else "".
std::string others_beside(const std::string& wanted, const std::vector<std::string>& names) {
  const std::string section = wanted.substr(0, wanted.find('.') + 1);
  std::string text;
  for (const std::string& name : names)
    if (!section.empty() && name.starts_with(section)) text += (text.empty() ? "" : ", ") + name.substr(section.size());
  return text.empty() ? "" : " (known in [" + section.substr(0, section.size() - 1) + "]: " + text + ")";
}

}  // namespace

std::string explain(std::string_view key, std::span<const ComponentSchema> plugins) {
  const ComponentList components(plugins);
  if (key.empty()) return explain_all(components);
  const std::string wanted = without_number(key);
  std::vector<std::string> names;
  for (const SectionSchema& section : sections()) {
    if (section.name == wanted) return explain_section(section, components);
    names.push_back(section.name);
  }
  std::string text;
  for (const Known& known : known_keys(components)) {
    if (known.name == wanted) text += (text.empty() ? "" : "\n") + explain_key(known);
    names.push_back(known.name);
  }
  for (const ComponentSchema* component : components.all()) {
    if (component_section(*component) == wanted || component->name == wanted) {
      text += (text.empty() ? "" : "\n") + explain_component(*component);
    }
    names.push_back(component->name);
  }
  if (!text.empty()) return text;
  throw Error(ExitCode::usage,
              "there is no key " + in_quotes(wanted) + did_you_mean(wanted, names) + others_beside(wanted, names));
}

}  // namespace trainer::recipe
