/// @file A file opened once for reading, by copy or by mapping. Free of LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace trainer::weights {

/// Part of a file in memory, private to this process: writing to it changes neither the file nor other mappings.
///
/// If another program cuts the file short while it is mapped, touching the lost part ends this process with SIGBUS.
/// Replacing a file by rename (as our writer does) is safe: the mapping keeps the old content.
class MappedRegion {
 public:
  MappedRegion(void* base, std::size_t length, std::size_t skip) : base_(base), length_(length), skip_(skip) {}
  MappedRegion(MappedRegion&& other) noexcept;
  MappedRegion& operator=(MappedRegion&&) = delete;
  ~MappedRegion();
  [[nodiscard]] char* data() const { return static_cast<char*>(base_) + skip_; }

 private:
  void* base_;
  std::size_t length_;
  std::size_t skip_;  // mappings begin at a page, regions anywhere
};

/// A regular file, opened read-only. Its size and modification time at opening are remembered: every read checks that
/// they still hold, so that a file which is written or cut while it is used is an error, not wrong numbers.
/// Thread-safe after opening. Not copyable.
class MappedFile {
 public:
  /// Throws Error: not_found; bad_input ST_NOT_REGULAR (a pipe does not hang); io.
  static MappedFile open(const std::filesystem::path& file);
  /// The same for a file that stands in an open folder. `shown` is its name in messages; with `follow_links` false a
  /// symbolic link is reported by returning a file that is not open.
  static MappedFile open_at(int folder, const std::string& name, const std::filesystem::path& shown, bool follow_links);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  [[nodiscard]] bool is_open() const { return fd_ >= 0; }
  [[nodiscard]] uint64_t size() const { return size_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Same device and inode: the same file under whatever name.
  [[nodiscard]] bool same_file(const MappedFile& other) const;
  /// Modification time in nanoseconds.
  [[nodiscard]] int64_t modified() const { return modified_; }

  /// Copies `bytes` bytes from `offset`. Throws Error: bad_input ST_CHANGED, io.
  void read(uint64_t offset, void* to, std::size_t bytes) const;
  /// Maps them; `bytes` > 0. The region may outlive this object. Throws like read.
  [[nodiscard]] MappedRegion map(uint64_t offset, std::size_t bytes) const;
  /// Throws Error (bad_input, ST_CHANGED) when the file is no longer what was opened.
  void check_unchanged() const;

 private:
  MappedFile(int fd, std::filesystem::path path) : fd_(fd), path_(std::move(path)) {}
  void remember_status();

  int fd_;
  std::filesystem::path path_;
  uint64_t size_ = 0;
  uint64_t device_ = 0;
  uint64_t inode_ = 0;
  int64_t modified_ = 0;
};

}  // namespace trainer::weights
