/// @file The cache on disk: FOLDER/<kind>/<first two digits>/<key>.safetensors, one entry a file, written whole or not
/// at all. Several runs may share a folder: entries never change, and equal keys hold equal content.
#pragma once

#include <trainer/sdk/tensor.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace trainer::cache {

inline constexpr std::string_view kLatents = "latents";  ///< {"latents": [C, T, h, w]}
inline constexpr std::string_view kText = "text";        ///< conditioning of a caption, e.g. {"prompt_embeds": [L, J]}

class Store {
 public:
  explicit Store(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// What is known about an entry.
  struct State {
    enum class Kind { present, absent, damaged } kind = Kind::absent;
    std::string reason;  ///< damaged: why
    uint64_t bytes = 0;  ///< present: size of the file
  };
  /// Reads the header, and the data too when `whole`. Throws Error (io) when the file cannot be read at all.
  [[nodiscard]] State check(std::string_view kind, const std::string& key, bool whole) const;

  /// On the CPU, in memory of their own. The header, the key, the checksum and that all values are finite are verified.
  /// Throws Error: not_found; bad_input for a damaged entry (remove it and it is made again).
  [[nodiscard]] NamedTensors load(std::string_view kind, const std::string& key) const;

  /// `about` says in the file what it is made from. Throws Error: non_finite, naming the tensor; io.
  void save(std::string_view kind, const std::string& key, const NamedTensors& tensors, const std::string& about) const;

  [[nodiscard]] std::filesystem::path file(std::string_view kind, const std::string& key) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace trainer::cache
