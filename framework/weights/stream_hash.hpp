/// @file Hashes over bytes that pass by: the same values as base/hash.hpp gives for a whole file.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace trainer::weights {

struct HashChoice {
  bool xxh128 = false;  ///< fast, finds damage
  bool sha256 = false;  ///< for files that leave the machine
};

class StreamHash {
 public:
  explicit StreamHash(HashChoice choice);
  ~StreamHash();
  StreamHash(const StreamHash&) = delete;
  StreamHash& operator=(const StreamHash&) = delete;
  void add(const void* data, std::size_t bytes);
  /// Lower-case hex digits, empty when not chosen. Call once, at the end.
  [[nodiscard]] std::string xxh128() const;
  [[nodiscard]] std::string sha256();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainer::weights
