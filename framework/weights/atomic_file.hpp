/// @file A file written piece by piece that appears under its name only when it is whole. Free of LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace trainer::weights {

/// Writes to a temporary file in the same folder; `commit` makes it durable (fdatasync, checked close), renames it over
/// the target and syncs the folder. Until then, and if anything throws, the old file stays as it is, and the destructor
/// removes the temporary one. Because the target gets a new inode, a file that is mapped or open keeps its content.
class AtomicFile {
 public:
  /// Throws Error (io) when the folder cannot be written to, or when `target` is there and no regular file.
  explicit AtomicFile(std::filesystem::path target);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// Asks the file system for room, so that a full disk shows before hours of writing. Does nothing where that is not
  /// supported. Throws Error (io, code IO_NO_SPACE).
  void reserve(uint64_t bytes);
  /// Throws Error (io; code IO_NO_SPACE for a full disk or quota).
  void write(const void* data, std::size_t bytes);
  [[nodiscard]] uint64_t written() const { return written_; }
  /// Throws Error (io). The file is then complete or untouched; a second attempt needs a new AtomicFile, because
  /// after a failed sync the kernel may report lost data as written.
  void commit();
  /// Commits several, syncing every folder once. When it throws, some may have been replaced, each by a whole file.
  static void commit(std::span<const std::unique_ptr<AtomicFile>> files);

 private:
  void make_durable();
  void take_name();
  [[noreturn]] void fail(const std::string& doing, int number) const;

  std::filesystem::path target_;
  std::filesystem::path temp_;
  int fd_ = -1;
  uint64_t written_ = 0;
};

}  // namespace trainer::weights
