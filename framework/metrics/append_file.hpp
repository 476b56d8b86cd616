/// @file A file that grows by whole records: each is one write(2), so a killed run leaves at most one partial record
/// at the end, and a full disk none (internal to metrics).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace trainer::metrics {

class AppendFile {
 public:
  enum class Mode { create_new, open_or_create };
  /// Throws Error (io); with create_new also when the file exists.
  AppendFile(std::filesystem::path file, Mode mode);
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  ~AppendFile();
  /// Throws Error (io); the file is then as before.
  void append(std::string_view record);
  void truncate(uint64_t size);
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int fd_;
};

}  // namespace trainer::metrics
