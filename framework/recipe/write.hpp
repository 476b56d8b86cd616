/// @file Values as TOML text.
#pragma once

#include <trainer/sdk/options.hpp>

#include <string>
#include <string_view>

namespace trainer::recipe {

/// A TOML basic string with its quotes.
std::string in_quotes(std::string_view text);
/// The shortest text that reads back as the same number, always recognisable as a float: "1e-4", "3.0", "nan".
std::string number_text(double number);
/// A value as TOML; tables inline. An empty value gives "".
std::string toml_text(const Value& value);
/// Bytes in the largest unit that divides them: 22000000000 -> "22GB".
std::string bytes_text(int64_t bytes);
/// A (dotted) key, in quotes where it has to be.
std::string toml_key(std::string_view key);
bool equal(const Value& first, const Value& second);

}  // namespace trainer::recipe
