/// @file Numbers with units, for people: "1.2 GB", "3 min 20 s", and back ("22GB").
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trainer {

/// Decimal units as disk and card makers use them: 1.5 GB = 1,500,000,000 bytes.
std::string format_bytes(double bytes);
/// "304 MFLOP", "1.5 TFLOP": floating-point operations.
std::string format_flops(double flops);
/// "0.076 s", "12 s", "3 min 20 s", "2 h 05 min".
std::string format_seconds(double seconds);
/// "22GB", "22 GB", "512MB", "24GiB"; nullopt when malformed.
std::optional<int64_t> parse_bytes(std::string_view text);
/// 1234567 -> "1,234,567".
std::string format_count(int64_t count);

}  // namespace trainer
