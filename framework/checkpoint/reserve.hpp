/// @file Room on the disk that a run keeps for its last save: RUN/reserve.bin, given back when the disk is full. Free
/// of LibTorch.
#pragma once

#include <cstdint>
#include <filesystem>

namespace trainer::checkpoint {

class Reserve {
 public:
  explicit Reserve(const std::filesystem::path& run_folder, const char* name = "reserve.bin")
      : file_(run_folder / name) {}

  /// Takes `bytes` of the file system, not less than before. Throws Error (io; IO_NO_SPACE when there is no room).
  void hold(uint64_t bytes) const;

  /// Gives the room back; true when there was some.
  bool release() const;

 private:
  std::filesystem::path file_;
};

}  // namespace trainer::checkpoint
