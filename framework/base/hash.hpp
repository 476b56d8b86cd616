/// @file Content hashes: XXH3-128 for cache keys and chunk checks, SHA-256 for what leaves the machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace trainer {

/// 32 lower-case hex digits.
std::string xxh128(std::string_view bytes);
/// 64 lower-case hex digits.
std::string sha256(std::string_view bytes);
/// The same over a file's content, read in chunks. Throws Error (not_found, io).
std::string xxh128_file(const std::filesystem::path& file);
std::string sha256_file(const std::filesystem::path& file);

/// Hashes a sequence of fields unambiguously (each is preceded by its length), for cache keys and fingerprints.
class FieldHash {
 public:
  FieldHash();
  ~FieldHash();
  FieldHash(const FieldHash&) = delete;
  FieldHash& operator=(const FieldHash&) = delete;
  FieldHash& add(std::string_view field);
  FieldHash& add(int64_t field);
  /// 32 lower-case hex digits over the fields so far.
  [[nodiscard]] std::string hex() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainer
