/// @file Captions from strangers' files to clean text: used by the dataset scan for caption files and metadata.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace trainer::data {

inline constexpr std::size_t kMaxCaptionBytes = 64 << 10;

/// Strict UTF-8; byte order marks in front are dropped, CRLF and CR become LF, white space at the end is dropped;
/// nothing else is changed (no Unicode normalisation, no case). Throws Error (bad_input) with the reason alone: not
/// UTF-8 (with the offset of the byte), a control character other than tab and newline, over kMaxCaptionBytes.
std::string clean_caption(std::string_view bytes);

/// "sks dog" + "a dog on a beach" -> "sks dog, a dog on a beach". A caption that already contains the trigger is left
/// as it is; an empty one becomes the trigger.
std::string with_trigger(const std::string& trigger, const std::string& caption);

}  // namespace trainer::data
