/// @file Recipes in and out: TOML files with `extends` and `--set` to a checked Recipe, and back to resolved TOML.
#pragma once

#include <recipe/document.hpp>
#include <recipe/recipe.hpp>
#include <recipe/schema.hpp>

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace trainer::recipe {

struct LoadOptions {
  bool paths_must_exist = true;   ///< report missing model, data, ... paths (`plan` and tests may not want that)
  bool model_must_exist = false;  ///< report missing paths of [model], whatever paths_must_exist says
};

/// Reads and checks a recipe. `overrides` are "key=value" texts of --set, applied last, in order; `components` are the
/// schemas of the plugins found. Relative paths are relative to the file they stand in,
/// on the command line and for run.output to the current folder; "~/" and ${HOME}, ${XDG_CACHE_HOME}, ${TRAINER_DATA},
/// ${TRAINER_MODELS} are expanded in paths, once; "$${" is a literal "${".
/// Throws Error: not_found (no such file), bad_recipe with all mistakes at once, one "file:line:col: message" a line.
Recipe load(const std::string& file, std::span<const std::string> overrides,
            std::span<const ComponentSchema> components, const LoadOptions& options = {});

/// The same from a tree (see compose.hpp), read from `file`.
Recipe read_tree(Node root, const std::string& file, std::span<const std::string> overrides,
                 std::span<const ComponentSchema> components, const LoadOptions& options);

/// A recipe that a run stored (to_toml with absolute paths), from memory: no file is read or written, no path needs to
/// exist. Throws Error as load does, with `name` for the file.
Recipe load_stored(const std::string& text, const std::string& name, std::span<const ComponentSchema> components);

/// Only reads the file and its `extends` as TOML. Throws as load does.
void check_syntax(const std::string& file);

enum class PathStyle { absolute, as_written };

/// The complete recipe as TOML, every key given. With absolute paths it loads again to an equal recipe from any folder;
/// as written, paths that were not given are left out.
std::string to_toml(const Recipe& recipe, PathStyle paths = PathStyle::absolute);

/// Every key with its value as TOML text, in the order of to_toml ("data.0.folder", "\"/photos\"").
std::vector<std::pair<std::string, std::string>> flatten(const Recipe& recipe, PathStyle paths = PathStyle::absolute);

struct Difference {
  std::string key, first, second;  ///< values as TOML text; empty where one recipe lacks the key
};

/// The keys in which two recipes differ.
std::vector<Difference> differences(const Recipe& first, const Recipe& second);

}  // namespace trainer::recipe
