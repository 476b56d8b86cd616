/// @file A recipe that load() has resolved, as it goes from the front to the engine; and recipes that differ from it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <recipe/recipe.hpp>
#include <recipe/schema.hpp>

#include <map>
#include <span>
#include <string>

namespace trainer::recipe {

/// All of a recipe, as text: what its file says and what extends, overrides and defaults make of it.
struct Resolved {
  std::string file;                                     ///< as it was named
  std::string text;                                     ///< to_toml, with absolute paths
  std::map<std::string, std::string> paths_as_written;  ///< as in Recipe
  Positions positions;                                  ///< as in Recipe
};
Resolved resolved(const Recipe& recipe);

nlohmann::json to_json(const Resolved& recipe);
/// `json` is written by our own front; a malformed one is a defect and throws std::exception.
Resolved parse_resolved(const nlohmann::json& json);

/// The recipe again; no file is read. `components` are the schemas that it was resolved with. Throws Error (bad_recipe)
/// with positions in the recipe's files.
Recipe load_resolved(const Resolved& recipe, std::span<const ComponentSchema> components);

/// The same recipe with these texts of --set in addition. Throws Error (bad_recipe).
Recipe changed(const Recipe& recipe, std::span<const std::string> overrides,
               std::span<const ComponentSchema> components);

}  // namespace trainer::recipe
