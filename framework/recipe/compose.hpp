/// @file One tree out of a recipe file, the files it extends and the --set overrides.
#pragma once

#include <recipe/document.hpp>
#include <recipe/problems.hpp>

#include <span>
#include <string>

namespace trainer::recipe {

/// Reads `file` and, below it, what `extends` names (relative to the file that says so): tables are merged key by key,
/// everything else replaces. The key `extends` is taken out. Throws Error (not_found, bad_recipe).
Node read_with_bases(const std::string& file);

/// A recipe that a run stored, from memory; `name` is for messages. It is complete: `extends` is refused. Throws Error
/// (bad_recipe; bad_input, too large).
Node read_stored(const std::string& text, const std::string& name);

/// Applies "a.b=value" in order. List items are addressed by number ("data.0.repeats=2"). Mistakes go to `problems`.
void apply_overrides(Node& root, std::span<const std::string> overrides, Problems& problems);

}  // namespace trainer::recipe
