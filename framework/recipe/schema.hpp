/// @file What may stand in a recipe: option, component and section schemas.
///
/// Everything about a recipe's keys (checking, defaults, `explain`, the resolved recipe, docs/recipe-reference.md)
/// comes from these tables. Sections of the framework are declared in C++ (sections_*.cpp); components (models,
/// strategies, objectives, ...) declare theirs in their plugin manifest, so that a recipe is checked without opening a
/// library.
#pragma once

#include <trainer/sdk/options.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::recipe {

/// The forms a value may have; a key may allow several (bits). In a manifest: "boolean", "integer", "number", "string",
/// "path" (a string resolved to an absolute path), "bytes" ("22GB", stored as an integer), and the lists "integers",
/// "numbers", "strings"; alternatives are joined by "|": "string|strings".
enum ValueType : unsigned {
  kBool = 1,
  kInt = 2,
  kFloat = 4,
  kString = 8,
  kPath = 16,
  kBytes = 32,
  kIntList = 64,
  kFloatList = 128,
  kStringList = 256,
};

/// One key.
struct OptionSpec {
  std::string key;              ///< within its section; a dot makes a sub-table ("schedule.warmup_steps")
  unsigned type = 0;            ///< ValueType bits
  Value fallback{};             ///< the default; empty: none
  std::string fallback_text{};  ///< the default in words where it is not a constant ("the folder ...")
  std::string same_as{};        ///< key of the same component whose value is the default ("rank" for "alpha")
  bool required = false;        ///< must be given
  std::optional<double> min{}, max{}, above{};  ///< range of numbers and of list items; `above` is exclusive
  int64_t multiple_of = 0;                      ///< 0: any
  std::size_t min_items = 0, max_items = 0;     ///< length of lists; max 0: any
  std::vector<std::string> choices{};           ///< valid texts (where several types are allowed, of the single string)
  std::string unit{};                           ///< "steps", "pixels"
  std::string help{};                           ///< one or two sentences
  std::string alias{};                          ///< another name of the key ("device" for "devices")
  bool must_exist = false;                      ///< paths: the file or folder must be there
  bool from_working_folder = false;             ///< paths: relative to the current folder, not the recipe's
  bool in_file = false;                         ///< adapters: has no default where `path` is given, the file says it
};

/// Options of a memory strategy with which the planner may choose it (`[[candidate]]` of its manifest).
struct Candidate {
  Table options;     ///< complete
  std::string text;  ///< what the manifest gave, e.g. `save = ["attention"]`; "" for the defaults
};

/// How far a memory strategy that packs weights may be from what it stands for (`[tolerance]` of its manifest): what
/// `prove`, `plugins check` and the equivalence matrix hold it to.
struct Tolerance {
  /// Between `matmul` and `grad_input` of a packed weight and the products with its own `dense()`: norm of the
  /// difference over the norm. 0: bit-equal.
  double rounding = 0;
  /// Between the run with packed weights and the run with those of the file: loss of a step, and gradients of a
  /// micro-batch (all of them as one vector), relative.
  double dense = 0.1;
};

/// What a component can be told.
struct ComponentSchema {
  std::string name;     ///< the value of the section's `kind` ("flux2"); for memory the name in `memory.strategies`
  std::string kind;     ///< model, text_encoder, autoencoder, objective, adapter, memory, placement
  std::string summary;  ///< one sentence
  std::vector<OptionSpec> options;
  /// What the rest of the recipe must give it. Objective: "pictures" (with captions) or "texts" alone; text encoder:
  /// "weights" and "tokenizer", "tokenizer", or nothing. Other kinds: empty.
  std::vector<std::string> needs{};
  [[nodiscard]] bool needs_the(std::string_view what) const;
  std::vector<Candidate> candidates{};  ///< memory strategies: what `memory.budget` chooses from
  Tolerance tolerance{};                ///< memory strategies that pack weights
  std::vector<std::string> tensors{};   ///< adapters: what the names of the tensors in their files end in
};

/// One table of the recipe.
struct SectionSchema {
  std::string name;                   ///< "train"
  std::string summary;                ///< one sentence
  bool repeated = false;              ///< [[data]]
  bool optional = false;              ///< leaving it out means something ([adapter])
  std::string component{};            ///< the component kind whose options also stand here; empty: none
  std::vector<OptionSpec> options{};  ///< the keys the framework reads
};

/// Reads `name`, `kind`, `summary`, `needs`, `tensors`, the `[[option]]`, `[[candidate]]` and `[tolerance]` tables of a
/// plugin manifest; other keys are the loader's. A candidate holds values for options of the component, checked like
/// those of a recipe. Option keys: key, type, default, default_text, same_as, required, min, max, above, multiple_of,
/// min_items, max_items, choices, unit, help, alias, must_exist, in_file. `file` names the manifest in messages. Throws
/// Error (plugin_rejected) listing every mistake as file:line:col, among them a default that breaks its own rules.
ComponentSchema parse_component_schema(std::string_view manifest, const std::string& file);

/// The sections of a recipe in the order of the reference.
const std::vector<SectionSchema>& sections();

/// "an integer", "a string or a list of strings": for messages and the reference.
std::string type_in_words(unsigned type);

}  // namespace trainer::recipe
