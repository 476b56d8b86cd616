/// @file Text from files that others made, for the terminal: nothing in it can move the cursor or hide other text.
#pragma once

#include <string>
#include <string_view>

namespace trainer {

/// `text` (UTF-8) with control characters (C0, delete, C1) and marks that turn the direction of writing as "\x1b", byte
/// by byte; bytes that are no UTF-8 likewise.
std::string printable(std::string_view text);

}  // namespace trainer
