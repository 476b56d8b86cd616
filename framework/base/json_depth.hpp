/// @file How deeply a JSON text nests, told before a parser builds a tree of it: nlohmann parses without recursion, but
/// copies, compares and writes a tree by calling itself for each level, so that a file of 200 kB can use up the stack.
#pragma once

#include <string>
#include <string_view>

namespace trainer {

/// More levels than any file that is read here has; those of the formats themselves are at most 8 deep.
inline constexpr int kMostJsonLevels = 64;

/// Whether brackets outside of strings nest deeper than kMostJsonLevels. Of text that is no JSON either answer may
/// come; a parser stops there before it reaches what was counted wrongly.
bool nests_deeply(std::string_view json);

/// Throws Error (bad_input, JSON_DEPTH) for a text that nests deeply; `name` is the file, and what in it, for the
/// message.
void require_shallow(std::string_view json, const std::string& name);

}  // namespace trainer
