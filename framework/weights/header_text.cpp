#include <weights/safetensors_header.hpp>

#include <algorithm>
#include <cstring>

namespace trainer::weights {
namespace {

/// Length of the UTF-8 sequence at `at`, 0 when malformed (Unicode 15, table 3-7).
std::size_t sequence_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t offset) -> unsigned {
    return at + offset < text.size() ? static_cast<unsigned char>(text[at + offset]) : 0u;
  };
  const auto tail = [&](std::size_t offset, unsigned low = 0x80, unsigned high = 0xBF) {
    return byte(offset) >= low && byte(offset) <= high;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return tail(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    return tail(1, lead == 0xE0 ? 0xA0 : 0x80, lead == 0xED ? 0x9F : 0xBF) && tail(2) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    return tail(1, lead == 0xF0 ? 0x90 : 0x80, lead == 0xF4 ? 0x8F : 0xBF) && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::size_t invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    if (at + 8 <= text.size()) {  // headers are nearly all ASCII: eight bytes at a time
      uint64_t word;
      std::memcpy(&word, text.data() + at, sizeof word);
      if ((word & 0x8080808080808080u) == 0) {
        at += 8;
        continue;
      }
    }
    const std::size_t length = sequence_length(text, at);
    if (length == 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

TensorSize tensor_size(Dtype dtype, const std::vector<int64_t>& shape) {
  uint64_t count = 1;
  for (const int64_t dim : shape) {
    if (__builtin_mul_overflow(count, static_cast<uint64_t>(dim), &count)) return {0, "ST_OVERFLOW"};
  }
  uint64_t bits = 0;
  if (__builtin_mul_overflow(count, static_cast<uint64_t>(dtype_bits(dtype)), &bits)) return {0, "ST_OVERFLOW"};
  if (bits % 8 != 0) return {0, "ST_SUBBYTE"};
  return {bits / 8, nullptr};
}

}  // namespace trainer::weights
