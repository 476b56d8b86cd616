#include <recipe/write.hpp>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utility>

namespace trainer::recipe {

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      std::array<char, 8> escape;
      std::snprintf(escape.data(), escape.size(), "\\u%04X", byte);
      out += escape.data();
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string number_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  std::array<char, 32> buffer;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number);
  std::string text(buffer.data(), end);
  const std::size_t exponent = text.find('e');
  if (exponent == std::string::npos) return text.find('.') == std::string::npos ? text + ".0" : text;
  // "1e-04" -> "1e-4", "1e+20" -> "1e20"
  std::size_t digits = exponent + 1;
  if (text[digits] == '+')
    text.erase(digits, 1);
  else if (text[digits] == '-')
    ++digits;
  while (text[digits] == '0' && digits + 1 < text.size()) text.erase(digits, 1);
  return text;
}

std::string bytes_text(int64_t bytes) {
  constexpr std::array<std::pair<int64_t, const char*>, 7> kUnits = {{{int64_t{1} << 40, "TiB"},
                                                                      {1'000'000'000'000, "TB"},
                                                                      {int64_t{1} << 30, "GiB"},
                                                                      {1'000'000'000, "GB"},
                                                                      {int64_t{1} << 20, "MiB"},
                                                                      {1'000'000, "MB"},
                                                                      {1000, "kB"}}};
  for (const auto& [size, name] : kUnits) {
    if (bytes != 0 && bytes % size == 0) return std::to_string(bytes / size) + name;
  }
  return std::to_string(bytes) + "B";
}

std::string toml_key(std::string_view key) {
  for (const char c : key) {
    const bool bare =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
    if (!bare) return in_quotes(key);
  }
  return key.empty() ? "\"\"" : std::string(key);
}

std::string toml_text(const Value& value) {
  if (const auto* boolean = value.get_if<bool>()) return *boolean ? "true" : "false";
  if (const auto* integer = value.get_if<int64_t>()) return std::to_string(*integer);
  if (const auto* number = value.get_if<double>()) return number_text(*number);
  if (const auto* text = value.get_if<std::string>()) return in_quotes(*text);
  std::string out, separator;
  if (const auto* items = value.get_if<Array>()) {
    for (const Value& item : *items) out += std::exchange(separator, ", ") + toml_text(item);
    return "[" + out + "]";
  }
  if (const auto* table = value.get_if<Table>()) {
    for (const auto& [key, item] : *table)
      out += std::exchange(separator, ", ") + toml_key(key) + " = " + toml_text(item);
    return "{" + out + "}";
  }
  return {};
}

bool equal(const Value& first, const Value& second) { return toml_text(first) == toml_text(second); }

}  // namespace trainer::recipe
