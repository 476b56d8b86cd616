#include <base/printable.hpp>
#include <base/utf8.hpp>

#include <cstdint>

namespace trainer {
namespace {

/// The number of the character that `letter` is, in UTF-8.
uint32_t number_of(std::string_view letter) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(letter[i]); };
  uint32_t number = letter.size() == 1 ? byte(0) : byte(0) & (0xFFU >> (letter.size() + 1));
  for (std::size_t i = 1; i < letter.size(); ++i) number = number << 6 | (byte(i) & 0x3FU);
  return number;
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
    const std::size_t size = utf8_length(text, 0);
    const std::size_t taken = size == 0 ? 1 : size;
    const bool plain = size > 0 && !is_control(number_of(text.substr(0, size)));
    for (const char c : text.substr(0, taken)) {
      const auto byte = static_cast<unsigned char>(c);
      if (plain || kept.find(c) != std::string_view::npos)
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

}  // namespace trainer
