#include <base/units.hpp>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace trainer {
namespace {

std::string printed(const char* format, auto... values) {
  std::array<char, 64> buffer;
  std::snprintf(buffer.data(), buffer.size(), format, values...);
  return buffer.data();
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

/// In the unit that leaves at most three digits; `units` are a thousand apart.
std::string scaled(double value, const std::array<const char*, 6>& units) {
  std::size_t unit = 0;
  for (; std::abs(value) >= 999.5 && unit + 1 < units.size(); ++unit) value /= 1000;  // 999.5 would print as 1000
  return printed(unit > 0 && std::abs(value) < 99.95 ? "%.1f %s" : "%.0f %s", value, units[unit]);
}

}  // namespace

std::string format_bytes(double bytes) {
  return std::isfinite(bytes) ? scaled(bytes, {"B", "kB", "MB", "GB", "TB", "PB"}) : "? B";
}

std::string format_flops(double flops) { return scaled(flops, {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"}); }

std::string format_seconds(double seconds) {
  if (!std::isfinite(seconds)) return "? s";
  if (seconds < 0) return "-" + format_seconds(-seconds);
  if (seconds < 0.9995) return printed("%.3f s", seconds);
  if (seconds < 9.95) return printed("%.1f s", seconds);
  if (seconds < 59.5) return printed("%.0f s", seconds);
  const long long whole = std::llround(seconds);
  if (whole < 3600) return printed("%lld min %02lld s", whole / 60, whole % 60);
  const long long minutes = std::llround(seconds / 60);
  return printed("%lld h %02lld min", minutes / 60, minutes % 60);
}

std::optional<int64_t> parse_bytes(std::string_view text) {
  struct Unit {
    std::string_view name;
    double bytes;
  };
  constexpr std::array<Unit, 9> kUnits = {{{"b", 1},
                                           {"kb", 1e3},
                                           {"mb", 1e6},
                                           {"gb", 1e9},
                                           {"tb", 1e12},
                                           {"kib", 0x1p10},
                                           {"mib", 0x1p20},
                                           {"gib", 0x1p30},
                                           {"tib", 0x1p40}}};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc{} || !std::isfinite(number) || number < 0) return std::nullopt;
  std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (rest.starts_with(' ')) rest.remove_prefix(1);
  const std::string name = lower(rest);
  for (const Unit& unit : kUnits) {
    if (unit.name != name) continue;
    const double bytes = number * unit.bytes;
    if (bytes >= 0x1p62) return std::nullopt;
    return static_cast<int64_t>(std::llround(bytes));
  }
  return std::nullopt;
}

std::string format_count(int64_t count) {
  std::string digits = std::to_string(count);
  const std::size_t first = digits[0] == '-' ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, ",");
  return digits;
}

}  // namespace trainer
