/// @file What makes a safetensors file an entry of the cache: its metadata and a checksum over its tensors. Free of
/// LibTorch, so that it is fuzzed.
#pragma once

#include <weights/safetensors_header.hpp>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace trainer::cache {

/// Metadata of an entry.
std::map<std::string, std::string> entry_metadata(std::string_view kind, const std::string& key,
                                                  const std::string& about, const std::string& checksum);

/// Over names and bytes of the tensors, in the order of the names.
std::string entry_checksum(const std::map<std::string, std::string_view>& tensors);

/// Throws Error (bad_input, CACHE_ENTRY) unless the header is that of the entry `key` and promises tensors.
void require_entry(const weights::Header& header, const std::filesystem::path& file, std::string_view kind,
                   const std::string& key);

/// Throws Error (bad_input, CACHE_ENTRY) unless `checksum` is that of the header.
void require_checksum(const weights::Header& header, const std::filesystem::path& file, const std::string& checksum);

}  // namespace trainer::cache
