/// @file Reads the values of one recipe table by their option schemas.
#pragma once

#include <recipe/document.hpp>
#include <recipe/load.hpp>
#include <recipe/problems.hpp>
#include <recipe/schema.hpp>

#include <map>
#include <span>
#include <string>
#include <vector>

namespace trainer::recipe {

/// What reading a recipe needs and collects.
struct Reading {
  Problems problems;
  LoadOptions options{};
  std::vector<std::string> known_keys;                  ///< all dotted keys, for suggestions across sections
  std::map<std::string, std::string> paths_as_written;  ///< dotted key -> text
};

/// Checks a value and brings it into the form the schema names: an integer as float where only float is allowed, a path
/// absolute, bytes as an integer. `full_key` is for messages. Returns an empty value after reporting a problem.
Value read_value(const Node& node, const OptionSpec& spec, const std::string& full_key, Reading& reading);

/// Reads a whole table: every key of `specs` is in the result, defaults filled in (same_as too). Unknown keys, except
/// those in `others`, and missing required ones are reported. A table that is no table is reported and read as empty.
/// `node` nullptr: the table was not given; problems are then placed at `position`.
Table read_table(const Node* node, const SourcePosition& position, const std::string& section,
                 std::span<const OptionSpec* const> specs, std::span<const std::string> others, Reading& reading);

/// "1 to 8", "at least 1", "above 0"; "" without limits.
std::string range_in_words(const OptionSpec& spec);

}  // namespace trainer::recipe
