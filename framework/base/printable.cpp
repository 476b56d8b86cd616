#include <base/printable.hpp>

#include <cstdint>

namespace trainer {
namespace {

/// Bytes of the UTF-8 letter at the start of `text`, 0 when there is none; its number in `letter`.
std::size_t take(std::string_view text, uint32_t& letter) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const std::size_t size = first < 0x80 ? 1 : first >> 5 == 6 ? 2 : first >> 4 == 14 ? 3 : first >> 3 == 30 ? 4 : 0;
  if (size == 0 || size > text.size()) return 0;
  letter = size == 1 ? first : first & (0xFFU >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    letter = letter << 6 | (byte(i) & 0x3FU);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (letter < kLeast[size]) return 0;  // an overlong spelling may be one of a control character
  const bool surrogate = letter >= 0xD800 && letter <= 0xDFFF;
  return surrogate || letter > 0x10FFFF ? 0 : size;
}

bool is_control(uint32_t letter) {
  const bool turns = (letter >= 0x202A && letter <= 0x202E) || (letter >= 0x2066 && letter <= 0x2069);
  return letter < 0x20 || (letter >= 0x7F && letter < 0xA0) || turns;
}

/// With control characters as they are that are in `kept`.
std::string escaped(std::string_view text, std::string_view kept) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string safe;
  while (!text.empty()) {
    uint32_t letter = 0;
    const std::size_t size = take(text, letter);
    const std::size_t taken = size == 0 ? 1 : size;
    for (const char c : text.substr(0, taken)) {
      const auto byte = static_cast<unsigned char>(c);
      if ((size > 0 && !is_control(letter)) || kept.find(c) != std::string_view::npos)
        safe += c;
      else
        safe += std::string("\\x") + kDigits[byte >> 4] + kDigits[byte & 15];
    }
    text.remove_prefix(taken);
  }
  return safe;
}

}  // namespace

std::string printable(std::string_view text) { return escaped(text, {}); }

std::string printable_lines(std::string_view text) { return escaped(text, "\n\t"); }

bool is_utf8(std::string_view text) {
  uint32_t letter = 0;
  while (!text.empty()) {
    const std::size_t size = take(text, letter);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

}  // namespace trainer
