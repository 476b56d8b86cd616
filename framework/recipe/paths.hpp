/// @file Paths of a recipe: expansion of the few allowed variables, and to which folder a relative path belongs.
#pragma once

#include <recipe/recipe.hpp>

#include <string>
#include <string_view>

namespace trainer::recipe {

/// Replaces "~/" at the start and ${HOME}, ${XDG_CACHE_HOME}, ${TRAINER_DATA}, ${TRAINER_MODELS}, once; "$${" becomes
/// "${". On failure returns an empty text and sets `problem`.
std::string expand_variables(std::string_view text, std::string& problem);

/// Absolute and without "." and ".."; relative paths belong to the folder of the file at `position`, or to the current
/// folder (on the command line, or `from_working_folder`). A trailing slash is dropped.
std::string absolute_path(const std::string& path, const SourcePosition& position, bool from_working_folder);

/// A path that expand_variables gives back unchanged.
std::string escaped_path(std::string_view path);

/// "" when the path exists, else "no such file or folder: ..." with the nearest name in its folder.
std::string missing_path(const std::string& path);

}  // namespace trainer::recipe
