/// @file Files in memory that break one rule each, with the code and a piece of the message that must result.
#pragma once

#include <weights/safetensors_header.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::weights::corpus {

inline constexpr Profile kCompat = Profile::compat;

struct Case {
  std::string label;
  std::string bytes;
  std::string code;   ///< empty: accepted
  std::string piece;  ///< of the message; accepted: the names in file order, comma-separated
  Profile profile = Profile::strict;
};

/// A file whose length field says `claimed`.
inline std::string with_length(uint64_t claimed, std::string_view rest) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[static_cast<std::size_t>(i)] = static_cast<char>(claimed >> (8 * i));
  return bytes + std::string(rest);
}
/// A file with this header and that many zero bytes of data.
inline std::string file(std::string_view json, std::size_t data_bytes = 0) {
  return with_length(json.size(), json) + std::string(data_bytes, '\0');
}
/// `"name":{...}`
inline std::string entry(const std::string& name, const std::string& dtype, const std::string& shape, uint64_t begin,
                         uint64_t end) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":[" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}
/// A header with one F32 tensor "a" of 2 elements whose field `name` is replaced by `value` (8 bytes of data).
inline std::string one(const std::string& shape, const std::string& offsets = "[0,8]",
                       const std::string& dtype = "\"F32\"", std::size_t data_bytes = 8) {
  return file("{\"a\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}", data_bytes);
}
inline const std::string kGood = "{" + entry("a", "F32", "[2]", 0, 8) + "}";  // needs 8 bytes of data

const std::vector<Case>& framing_cases();  // rules 2 to 9
const std::vector<Case>& json_cases();     // rules 12 to 19
const std::vector<Case>& tensor_cases();   // rules 20 to 26
const std::vector<Case>& large_cases();    // rules 15 and 18: over the limits
std::vector<Case> accepted_cases();
std::vector<Case> all_cases();

}  // namespace trainer::weights::corpus
