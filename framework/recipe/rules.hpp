/// @file What is looked at after the single values: the components at hand, rules between keys, paths that follow from
/// others.
#pragma once

#include <recipe/document.hpp>
#include <recipe/problems.hpp>
#include <recipe/schema.hpp>

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::recipe {

/// The components of the plugins that were found.
class ComponentList {
 public:
  explicit ComponentList(std::span<const ComponentSchema> plugins);
  [[nodiscard]] const ComponentSchema* find(std::string_view kind, std::string_view name) const;
  /// "there is no model "flux3" (did you mean ...)".
  [[nodiscard]] std::string unknown(std::string_view kind, std::string_view name) const;
  [[nodiscard]] const std::vector<const ComponentSchema*>& all() const { return all_; }

 private:
  std::vector<const ComponentSchema*> all_;
};

/// Keys of [[data]] that are about pictures: texts have none of them.
inline constexpr std::array<std::string_view, 6> kPictureKeys = {"metadata", "caption",    "resolution",
                                                                 "crop",     "max_aspect", "upscale"};

/// Rules that involve several keys, or a format the schema does not know.
void check_rules(const Recipe& recipe, const Node& root, Problems& problems);

/// Fills in what follows from other keys: run.name, run.output, text_encoder.tokenizer, cache.folder.
void fill_in_paths(Recipe& recipe);

}  // namespace trainer::recipe
