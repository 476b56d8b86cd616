// Bytes as an entry of the cache; also with the checksum of its tensors put in, which random changes would never hit.
#include <cache/entry.hpp>

#include <map>
#include <string>

#include "target.hpp"

namespace {

using namespace trainer;

const std::string kKey(32, 'a');
constexpr std::string_view kKind = "text", kPlace = "CHECKSUM";

/// As cache::Store reads an entry, without tensors. Throws Error.
weights::Header read(std::string_view bytes) {
  const uint64_t length = weights::header_length(bytes.substr(0, 64), bytes.size(), "fuzz");
  weights::Header header = weights::parse_header(bytes.substr(0, 8 + length), bytes.size(), "fuzz");
  cache::require_entry(header, "fuzz", kKind, kKey);
  return header;
}

std::string checksum(const weights::Header& header, std::string_view bytes) {
  std::map<std::string, std::string_view> tensors;
  for (const weights::TensorEntry& entry : header.entries)
    tensors[entry.name] = bytes.substr(header.data_offset + entry.begin, entry.bytes());
  return cache::entry_checksum(tensors);
}

void take(std::string_view bytes) {
  const weights::Header header = read(bytes);
  cache::require_checksum(header, "fuzz", checksum(header, bytes));
  fuzz::require(header.metadata.at("key") == kKey && header.metadata.at("kind") == kKind, "another key never hits");
  for (std::size_t at = header.data_offset; at < bytes.size(); at += 1 + (bytes.size() - header.data_offset) / 16) {
    std::string flipped(bytes);
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    fuzz::require(checksum(header, flipped) != checksum(header, bytes), "a turned bit is seen");
  }
}

void parse(std::string_view bytes) {
  fuzz::run(take, bytes);
  // A text of 32 characters stands for the checksum: lengths stay as they are.
  const std::string place = std::string(kPlace) + std::string(32 - kPlace.size(), '-');
  const std::size_t at = bytes.find(place);
  if (at == std::string_view::npos) return;
  std::string mended(bytes);
  mended.replace(at, place.size(), checksum(read(bytes), bytes));
  take(mended);
}

}  // namespace
TRAINER_FUZZ_TARGET("cache_entry", parse);
