/// @file UTF-8 text as the tokenizer sees it: characters, their classes, the four Unicode normal forms.
/// Classes and normal forms come from utf8proc (Unicode 15).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trainer::text {

enum class NormalForm { nfc, nfd, nfkc, nfkd };

/// The character at `offset` of valid UTF-8; `offset` moves behind it.
int32_t next_character(std::string_view text, std::size_t& offset);

/// The character that ends at `end` of valid UTF-8; end > 0.
int32_t previous_character(std::string_view text, std::size_t end);

/// Valid UTF-8: each maximal ill-formed part becomes one U+FFFD, as WHATWG and Rust's from_utf8_lossy do.
std::string replace_invalid_utf8(std::string_view bytes);

/// The text between double quotes for a message: shortened to about 80 bytes, valid UTF-8, printable.
std::string in_quotes(std::string_view text);

/// Appends one character.
void append_character(std::string& text, int32_t character);

/// Unicode White_Space.
bool is_space(int32_t character);

/// \w of UTS #18: alphabetic, mark, decimal digit, connector punctuation or join control.
bool is_word(int32_t character);

/// `text` is valid UTF-8 (NUL included). Throws Error (bad_input) when utf8proc refuses it.
std::string normalise(std::string_view text, NormalForm form);

}  // namespace trainer::text
