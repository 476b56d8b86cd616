// Bytes as a whole safetensors file.
#include <base/utf8.hpp>
#include <weights/safetensors_header.hpp>

#include <algorithm>
#include <set>
#include <string>

#include "target.hpp"

namespace {

using namespace trainer;
using namespace trainer::weights;

/// What every accepted file keeps, checked without the reader's own helpers.
void check(const Header& header, std::size_t size) {
  uint64_t end = 0;
  std::set<std::string> names;
  for (const TensorEntry& entry : header.entries) {
    fuzz::require(entry.begin == end && entry.end >= entry.begin, "spans follow each other without gap");
    end = entry.end;
    const bool none = std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end();
    uint64_t count = 1;
    for (const int64_t side : entry.shape) {
      fuzz::require(side >= 0, "no dimension is negative");
      if (side == 0) continue;
      // Divided, not multiplied: the reader's own way is not repeated.
      fuzz::require(count <= uint64_t{INT64_MAX} / static_cast<uint64_t>(side), "no product of sides overflows");
      count *= static_cast<uint64_t>(side);
    }
    // An input is far smaller than 2^55 bytes.
    const uint64_t bits = none ? 0 : count * static_cast<uint64_t>(dtype_bits(entry.dtype));
    fuzz::require(bits == entry.bytes() * 8, "a span is as long as dtype and shape say");
    fuzz::require(!entry.name.empty() && names.insert(entry.name).second, "names are unique");
    fuzz::require(is_utf8(entry.name), "names are UTF-8");
    fuzz::require(header.find(entry.name) == &entry, "each tensor is found by its name");
  }
  fuzz::require(header.data_offset + end == size, "the last tensor ends with the file");
}

void parse(std::string_view bytes) {
  bool strict = false;
  for (const auto profile : {Profile::strict, Profile::compat}) {
    try {
      const uint64_t length = header_length(bytes.substr(0, 64), bytes.size(), "fuzz");
      const Header header = parse_header(bytes.substr(0, 8 + length), bytes.size(), "fuzz", profile);
      check(header, bytes.size());
      strict = strict || profile == Profile::strict;
    } catch (const Error& error) {
      fuzz::require(error.code().starts_with("ST_"), "a refusal names the rule");
      fuzz::require(!strict, "compat takes what strict takes");
    }
  }
}

}  // namespace
TRAINER_FUZZ_TARGET("safetensors_header", parse);
