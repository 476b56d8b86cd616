/// @file One tree out of a recipe file, the files it extends and the --set overrides.
#pragma once

#include <recipe/document.hpp>
#include <recipe/problems.hpp>

#include <span>
#include <string>

namespace trainer::recipe {

/// Reads `file` and, below it, what `extends` names (relative to the file that says so): tables are merged key by key,
/// everything else replaces. The key `extends` is taken out; unless `may_extend` it is
/// refused. Throws Error (not_found, bad_recipe).
Node read_with_bases(const std::string& file, bool may_extend = true);

/// Applies "a.b=value" in order. List items are addressed by number ("data.0.repeats=2"). Mistakes go to `problems`.
void apply_overrides(Node& root, std::span<const std::string> overrides, Problems& problems);

}  // namespace trainer::recipe
