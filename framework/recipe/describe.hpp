/// @file An option's facts in words, shared by `explain` and the reference.
#pragma once

#include <recipe/schema.hpp>

#include <string>

namespace trainer::recipe {

/// "required", "`32`", "the same as `rank`", "runs/<run.name>", "none"; `quote` surrounds literal values.
std::string default_in_words(const OptionSpec& spec, const std::string& quote);
/// "0 to 1; a multiple of 16; 2 items; one of ..."; "" when every value of the type is valid.
std::string limits_in_words(const OptionSpec& spec, const std::string& quote);

}  // namespace trainer::recipe
