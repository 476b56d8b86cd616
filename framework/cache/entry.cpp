#include <base/hash.hpp>
#include <cache/entry.hpp>
#include <trainer/sdk/error.hpp>

namespace trainer::cache {
namespace {

constexpr const char* kFormat = "trainer cache entry 1";

Error damaged(const std::filesystem::path& file, const std::string& reason) {
  return {ExitCode::bad_input, "cache entry " + file.string() + ": " + reason, "CACHE_ENTRY"};
}

std::string metadata_of(const weights::Header& header, const std::string& name) {
  const auto it = header.metadata.find(name);
  return it == header.metadata.end() ? "" : it->second;
}

}  // namespace

std::map<std::string, std::string> entry_metadata(std::string_view kind, const std::string& key,
                                                  const std::string& about, const std::string& checksum) {
  return {{"format", kFormat}, {"kind", std::string(kind)}, {"key", key}, {"about", about}, {"checksum", checksum}};
}

std::string entry_checksum(const std::map<std::string, std::string_view>& tensors) {
  FieldHash hash;
  for (const auto& [name, bytes] : tensors) hash.add(name).add(bytes);
  return hash.hex();
}

void require_entry(const weights::Header& header, const std::filesystem::path& file, std::string_view kind,
                   const std::string& key) {
  if (metadata_of(header, "format") != kFormat) throw damaged(file, "is no cache entry of this version");
  if (metadata_of(header, "kind") != kind || metadata_of(header, "key") != key)
    throw damaged(file, "is an entry of another key");
  if (header.entries.empty()) throw damaged(file, "holds no tensor");
}

void require_checksum(const weights::Header& header, const std::filesystem::path& file, const std::string& checksum) {
  if (checksum != metadata_of(header, "checksum")) throw damaged(file, "the checksum does not fit the data");
}

}  // namespace trainer::cache
