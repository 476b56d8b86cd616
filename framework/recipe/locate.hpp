/// @file Where in a recipe a key stands: for mistakes that only a component finds, long after the text was read.
#pragma once

#include <span>
#include <string>

namespace trainer::recipe {

/// `message` with "file:line:col: " before it when it begins with a dotted key ("memory.selective_checkpointing.save:
/// ..."): the place of the key's value or, where the key has its default, of the nearest table around it. Any other
/// message, and that of a recipe that cannot be read (again), comes back as it is.
std::string with_position(const std::string& message, const std::string& file, std::span<const std::string> overrides);

}  // namespace trainer::recipe
