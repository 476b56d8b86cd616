/// @file The cache on disk: FOLDER/<kind>/<first two digits>/<key>.safetensors, one entry a file, written whole or not
/// at all. Several runs may share a folder: entries never change, and equal keys hold equal content.
#pragma once

#include <trainer/sdk/tensor.hpp>
#include <weights/atomic_file.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

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

  /// `about` says in the file what it is made from; on disk when it returns. Throws Error: non_finite, naming the
  /// tensor; io.
  void save(std::string_view kind, const std::string& key, const NamedTensors& tensors, const std::string& about) const;

  /// Deletes what killed processes left half-written (base/unfinished.hpp) if it was last changed longer ago than
  /// `age`: others, on other machines too, may be writing. What cannot be looked at or deleted stays.
  void remove_unfinished(std::chrono::hours age) const;

  [[nodiscard]] std::filesystem::path file(std::string_view kind, const std::string& key) const;
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
};

/// Saves many entries, waiting for the disk once for several. An entry is seen by others, and survives a crash, from
/// the commit on: of what was saved by then, each file is made durable before it gets its name, and the names before
/// `commit` returns. What is not committed goes away with this.
class Saver {
 public:
  static constexpr std::size_t kEntries = 64;  ///< pending at most, as open files
  static constexpr uint64_t kBytes = uint64_t{64} << 20;
  static constexpr std::chrono::milliseconds kDelay{1000};  ///< of work that a crash may undo

  explicit Saver(const Store& store) : store_(store) {}
  /// As Store::save, without waiting; commits when as much is pending as may be.
  void save(std::string_view kind, const std::string& key, const NamedTensors& tensors, const std::string& about);
  /// Throws Error (io): then some entries may be there, all of them whole; the others must be made again.
  void commit();

 private:
  void make_folder(const std::filesystem::path& folder);

  const Store& store_;
  std::vector<std::unique_ptr<weights::AtomicFile>> files_;
  std::set<std::filesystem::path> above_;  // folders of the pending files' folders
  std::set<std::filesystem::path> named_;  // those whose own names are durable
  uint64_t bytes_ = 0;
  std::chrono::steady_clock::time_point since_;
};

}  // namespace trainer::cache
