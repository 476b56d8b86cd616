/// @file A 5x7 pixel font (two more rows for descenders) for labels on sample grids; drawn for this project.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace trainer::sampling {

inline constexpr int64_t kGlyphWidth = 5, kGlyphHeight = 9;
inline constexpr int64_t kCharAdvance = 6, kLineAdvance = 11;  ///< with the space between characters and lines

/// Rows from the top; bit 4 is the leftmost pixel. Anything but printable ASCII is a box.
const std::array<uint8_t, kGlyphHeight>& glyph(char character);

/// UTF-8 as one byte per character: printable ASCII stays, white space becomes a space, every other code point or
/// broken byte becomes '\x7f' (drawn as a box).
std::string to_drawable(std::string_view utf8);

}  // namespace trainer::sampling
