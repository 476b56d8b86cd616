/// @file Text from files that others made, for the terminal: nothing in it can move the cursor or hide other text.
#pragma once

#include <string>
#include <string_view>

namespace trainer {

/// `text` (UTF-8) with control characters (C0, delete, C1) and marks that turn the direction of writing as "\x1b", byte
/// by byte; bytes that are no UTF-8 likewise.
std::string printable(std::string_view text);

/// The same for a message of several lines: ends of lines and tabs stay.
std::string printable_lines(std::string_view text);

/// JSON for stdout: in ASCII, so that no text in it reaches the terminal raw; what is no UTF-8 as U+FFFD.
template <typename Json>
std::string printable_json(const Json& json) {
  return json.dump(2, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

}  // namespace trainer
