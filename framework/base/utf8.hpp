/// @file Whether text is UTF-8 as JSON and TOML need it (RFC 3629; Unicode 15, table 3-7): without overlong spellings,
/// halves of surrogate pairs and numbers beyond U+10FFFF.
#pragma once

#include <cstddef>
#include <string_view>

namespace trainer {

/// Bytes of the character that begins at `at`, which is in `text`; 0 where none does.
std::size_t utf8_length(std::string_view text, std::size_t at);

/// Index of the first byte that is part of no character, or npos.
std::size_t invalid_utf8(std::string_view text);

inline bool is_utf8(std::string_view text) { return invalid_utf8(text) == std::string_view::npos; }

}  // namespace trainer
