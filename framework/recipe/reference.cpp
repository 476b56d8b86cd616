#include <recipe/reference.hpp>

#include <recipe/describe.hpp>
#include <recipe/rules.hpp>

#include <algorithm>

namespace trainer::recipe {
namespace {

constexpr const char* kIntroduction = R"(# Recipe reference

Generated from the schema of the framework and the manifests of its plugins; do not edit. `trainer explain KEY` shows the
same on the command line, for your own plugins too.

A recipe is a TOML file of at most 1 MiB. `extends = "base.toml"` at its top (relative to the file) takes over another
recipe: tables are merged key by key, everything else is replaced. `--set KEY=VALUE` replaces one key from the command
line; items of a list have numbers (`--set data.0.repeats=2`).

Paths in a recipe are relative to the file they stand in; on the command line, and for `run.output`, to the current
folder. In paths `~/` and `${HOME}`, `${XDG_CACHE_HOME}`, `${TRAINER_DATA}`, `${TRAINER_MODELS}` are replaced, once; no
other variable may be used, and `$${` stands for the characters `${`.

A key or section that is not listed here is an error, as is a value of another type or outside its limits.
)";

/// The table's separator inside a cell.
std::string cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, "\\");
  return text;
}

std::string table(const std::vector<OptionSpec>& options) {
  std::string out = "\n| key | type | default | valid | meaning |\n|---|---|---|---|---|\n";
  for (const OptionSpec& option : options) {
    const std::string name = "`" + option.key + "`" + (option.alias.empty() ? "" : ", `" + option.alias + "`");
    const std::string type = type_in_words(option.type) + (option.unit.empty() ? "" : ", " + option.unit);
    out += "| " + name + " | " + cell(type) + " | " + cell(default_in_words(option, "`")) + " | " +
           cell(limits_in_words(option, "`")) + " | " + cell(option.help) + " |\n";
  }
  return out;
}

std::string component(const ComponentSchema& schema) {
  const std::string heading =
      schema.kind == "memory" ? "[memory." + schema.name + "]" : "kind = \"" + schema.name + "\"";
  const std::string chosen = candidates_in_words(schema, "`");
  return "\n### `" + heading + "`\n\n" + schema.summary + "\n" +
         (chosen.empty() ? "" : "\n`memory.budget` may choose it with: " + chosen + ".\n") +
         (schema.options.empty() ? "\nNo options.\n" : table(schema.options));
}

}  // namespace

std::string reference_markdown(std::span<const ComponentSchema> plugins) {
  const ComponentList components(plugins);
  std::string out = kIntroduction;
  for (const SectionSchema& section : sections()) {
    out += "\n## `" + (section.repeated ? "[[" + section.name + "]]" : "[" + section.name + "]") + "`\n\n" +
           section.summary + "\n" + table(section.options);
    std::vector<const ComponentSchema*> of_section;
    for (const ComponentSchema* schema : components.all()) {
      if (schema->kind == section.component) of_section.push_back(schema);
    }
    std::sort(of_section.begin(), of_section.end(),
              [](const ComponentSchema* a, const ComponentSchema* b) { return a->name < b->name; });
    for (const ComponentSchema* schema : of_section) out += component(*schema);
  }
  return out;
}

}  // namespace trainer::recipe
