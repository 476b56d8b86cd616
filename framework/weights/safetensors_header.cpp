#include <weights/safetensors_header.hpp>

#include <base/utf8.hpp>
#include <trainer/sdk/names.hpp>
#include <weights/bad_file.hpp>
#include <weights/header_events.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <tuple>

namespace trainer::weights {
namespace {

static_assert(std::endian::native == std::endian::little, "ST_ENDIAN: safetensors data is little-endian");

constexpr char kFetch[] = ": interrupted download or save; fetch it again";

uint64_t little_endian_u64(std::string_view bytes) {
  uint64_t number;
  std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

/// What people most often have in place of the file they believe to have; empty when nothing is recognised.
std::string known_content(std::string_view prefix) {
  const auto begins = [&](std::string_view with) { return prefix.substr(0, with.size()) == with; };
  if (begins("version https://git-lfs")) {
    return "; this is a Git LFS pointer, not the file it points to: run `git lfs pull` in its repository";
  }
  if (begins("<!DOCTYPE") || begins("<!doctype") || begins("<html")) {
    return "; this is a web page, often a log-in or error page saved by a download: fetch the file again";
  }
  if (begins("PK\x03\x04")) return "; this looks like a PyTorch checkpoint (zip): convert it to safetensors";
  if (begins("\x80\x02") || begins("\x80\x04") || begins("\x80\x05")) {
    return "; this looks like a Python pickle (.ckpt, .pt), which can run code when it is opened: convert it to "
           "safetensors where you trust it";
  }
  if (begins("GGUF")) return "; this is a GGUF file: get the safetensors version of the model";
  if (begins("{")) return "; this looks like a JSON file, perhaps an index: name the folder instead";
  return {};
}

std::string likely_content(std::string_view prefix) {
  const std::string known = known_content(prefix);
  return known.empty() ? "; it is damaged or not a safetensors file" : known;
}

bool is_json_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/// The JSON text between white space that the profile allows.
std::string_view trim(std::string_view json, const std::string& file, Profile profile) {
  const bool compat = profile == Profile::compat;
  if (const std::size_t bad = invalid_utf8(json); bad != std::string_view::npos) {
    fail(file, "ST_UTF8",
         "byte " + std::to_string(bad) + " of the header is not UTF-8; the file is damaged: fetch it again");
  }
  std::size_t begin = 0;
  while (compat && begin < json.size() && is_json_space(json[begin])) ++begin;
  if (json.size() < 2 || begin == json.size() || json[begin] != '{') {
    fail(file, "ST_HEADER_START", "the header must begin with '{'" + likely_content({}));
  }
  std::size_t end = json.size();
  while (json[end - 1] == ' ' || (compat && is_json_space(json[end - 1]))) --end;
  if (is_json_space(json[end - 1])) {
    fail(file, "ST_HEADER_TRAILING",
         "only spaces may follow the header's closing brace; the last byte there is " + std::to_string(json[end - 1]));
  }
  return json.substr(begin, end - begin);
}

void check_size(const TensorEntry& entry, const std::string& file) {
  const TensorSize size = tensor_size(entry.dtype, entry.shape);
  if (size.code == nullptr && entry.end >= entry.begin && entry.bytes() == size.bytes) return;

  const std::string type =
      "tensor " + quote_name(entry.name) + ": " + std::string(dtype_name(entry.dtype)) + " " + shape_text(entry.shape);
  if (size.code != nullptr) {
    const bool subbyte = size.code == std::string_view("ST_SUBBYTE");
    fail(file, size.code,
         type +
             (subbyte ? " does not fill whole bytes"
                      : " has sides that multiply to over 2^63 - 1 elements or 2^64 bits") +
             "; the file is damaged: fetch it again");
  }
  const std::string held = entry.end < entry.begin ? "none" : std::to_string(entry.bytes());
  fail(file, "ST_SIZE_MISMATCH",
       type + " needs " + std::to_string(size.bytes) + " bytes, data_offsets [" + std::to_string(entry.begin) + ", " +
           std::to_string(entry.end) + "] hold " + held + "; the file is damaged: fetch it again");
}

void index_names(Header& header, const std::string& file) {
  header.by_name.resize(header.entries.size());
  std::iota(header.by_name.begin(), header.by_name.end(), 0u);
  const auto name = [&](uint32_t index) -> const std::string& { return header.entries[index].name; };
  std::sort(header.by_name.begin(), header.by_name.end(), [&](uint32_t a, uint32_t b) { return name(a) < name(b); });
  const auto twin = std::adjacent_find(header.by_name.begin(), header.by_name.end(),
                                       [&](uint32_t a, uint32_t b) { return name(a) == name(b); });
  if (twin != header.by_name.end()) {
    fail(file, "ST_DUP_KEY",
         "tensor " + quote_name(name(*twin)) +
             " appears twice; readers disagree on which one counts: "
             "export the file again with another program");
  }
}

/// Spans must follow each other from 0 to the end of the file.
void check_cover(const Header& header, uint64_t data_bytes, const std::string& file) {
  uint64_t end = 0;
  const TensorEntry* before = nullptr;
  for (const TensorEntry& entry : header.entries) {
    if (entry.begin != end) {
      const bool overlap = entry.begin < end;
      fail(file, overlap ? "ST_OVERLAP" : "ST_GAP",
           "tensor " + quote_name(entry.name) + " begins at " + std::to_string(entry.begin) + ", but " +
               (before != nullptr ? "tensor " + quote_name(before->name) + " ends at " + std::to_string(end)
                                  : "the data begins at 0") +
               (overlap ? ": they overlap" : ": a gap") + "; the file is damaged or hostile: fetch it again");
    }
    end = entry.end;
    before = &entry;
  }
  const std::string sizes = " (the header describes " + std::to_string(end) + " bytes of data, the file has " +
                            std::to_string(data_bytes) + ")";
  if (end > data_bytes) {
    fail(file, "ST_TRUNCATED_DATA", std::to_string(end - data_bytes) + " bytes are missing" + sizes + kFetch);
  }
  if (end < data_bytes) {
    fail(file, "ST_TRAILING_BYTES",
         std::to_string(data_bytes - end) + " bytes too many at the end" + sizes +
             ": the file is damaged or carries something hidden; fetch it again");
  }
}

}  // namespace

TensorSize tensor_size(Dtype dtype, const std::vector<int64_t>& shape) {
  int64_t count = 1;
  bool empty = false;
  for (const int64_t dim : shape) {
    // Beside a zero, too, wherever it stands: who multiplies some of the sides later, as for strides, must not
    // overflow.
    if (dim == 0)
      empty = true;
    else if (__builtin_mul_overflow(count, dim, &count))
      return {0, "ST_OVERFLOW"};
  }
  if (empty) return {0, nullptr};
  uint64_t bits = 0;
  if (__builtin_mul_overflow(count, dtype_bits(dtype), &bits)) return {0, "ST_OVERFLOW"};
  if (bits % 8 != 0) return {0, "ST_SUBBYTE"};
  return {bits / 8, nullptr};
}

const TensorEntry* Header::find(std::string_view name) const {
  const auto it = std::lower_bound(by_name.begin(), by_name.end(), name,
                                   [&](uint32_t index, std::string_view key) { return entries[index].name < key; });
  return it != by_name.end() && entries[*it].name == name ? &entries[*it] : nullptr;
}

uint64_t header_length(std::string_view prefix, uint64_t file_size, const std::string& file_name) {
  if (file_size < 8 || prefix.size() < 8) {
    fail(file_name, "ST_TOO_SHORT",
         "it has " + std::to_string(file_size) + " bytes; a header needs at least 8" + kFetch);
  }
  const uint64_t length = little_endian_u64(prefix);
  if (length > uint64_t{INT64_MAX}) {
    fail(file_name, "ST_HEADER_LEN", "the header claims " + std::to_string(length) + " bytes" + likely_content(prefix));
  }
  if (length > kMaxHeaderBytes) {
    fail(file_name, "ST_HEADER_TOO_LARGE",
         "the header claims " + std::to_string(length) + " bytes; the limit is " + std::to_string(kMaxHeaderBytes) +
             likely_content(prefix));
  }
  if (length > file_size - 8) {
    const std::string known = known_content(prefix);
    fail(file_name, "ST_TRUNCATED_HEADER",
         "the header claims " + std::to_string(length) + " bytes, " + std::to_string(file_size - 8) + " follow" +
             (known.empty() ? kFetch : known));
  }
  return length;
}

Header parse_header(std::string_view bytes, uint64_t file_size, const std::string& file_name, Profile profile) {
  const uint64_t length = header_length(bytes, file_size, file_name);
  if (bytes.size() < 8 + length) throw Error(ExitCode::failed, file_name + ": parse_header was given too few bytes");
  Header header;
  header.data_offset = 8 + length;
  const std::string_view json = trim(bytes.substr(8, length), file_name, profile);
  HeaderEvents events(file_name, profile, header);
  parse_json(json, events);
  // The JSON parser takes a NUL as the end of its input: what stands behind one was not looked at.
  if (const std::size_t nul = json.find('\0'); nul != std::string_view::npos) {
    fail(file_name, "ST_HEADER_TRAILING",
         "a NUL byte follows the closing brace, at byte " + std::to_string(nul) +
             " of the header; the file is damaged: fetch it again");
  }
  std::sort(header.entries.begin(), header.entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  index_names(header, file_name);
  for (const TensorEntry& entry : header.entries) check_size(entry, file_name);
  check_cover(header, file_size - header.data_offset, file_name);
  return header;
}

}  // namespace trainer::weights
