/// @file Where in a recipe a key stands: for mistakes that only a component finds, long after the text was read.
#pragma once

#include <recipe/document.hpp>
#include <recipe/recipe.hpp>

#include <string>

namespace trainer::recipe {

/// Of every value of a tree, by its dotted key; items of lists by number ("data.0.folder").
Positions positions_of(const Node& root);

/// Gives every value of a tree its position in `positions`, or that of the nearest table around it that has one.
void restore_positions(Node& root, const Positions& positions);

/// `message` with "file:line:col: " before it when it begins with a dotted key ("memory.selective_checkpointing.save:
/// ..."): the place of the key's value or, where the key has its default, of the nearest table around it. Any other
/// message comes back as it is.
std::string with_position(const std::string& message, const Positions& positions);

}  // namespace trainer::recipe
