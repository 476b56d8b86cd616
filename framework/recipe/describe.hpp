/// @file An option's facts in words, shared by `explain` and the reference.
#pragma once

#include <recipe/schema.hpp>

#include <string>

namespace trainer::recipe {

/// "none, must be given", "`32`", "the value of `rank`", "empty"; `quote` surrounds literal values.
std::string default_in_words(const OptionSpec& spec, const std::string& quote);
/// "0 to 1; a multiple of 16; 2 items; one of ..."; "" when every value of the type is valid.
std::string limits_in_words(const OptionSpec& spec, const std::string& quote);
/// "its defaults; `save = ["matmul"]`": with what `memory.budget` may choose a strategy; "" for never.
std::string candidates_in_words(const ComponentSchema& component, const std::string& quote);

}  // namespace trainer::recipe
