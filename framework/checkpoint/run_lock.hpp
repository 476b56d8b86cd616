/// @file One run a folder: an flock on RUN/.lock held as long as the process lives. Free of LibTorch.
#pragma once

#include <filesystem>

namespace trainer::checkpoint {

class RunLock {
 public:
  /// Creates the folder and takes the lock. Throws Error (locked) naming the process that holds it; io.
  explicit RunLock(const std::filesystem::path& run_folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace trainer::checkpoint
