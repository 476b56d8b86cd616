/// @file One run a folder: an flock on RUN/.lock held as long as the process lives. On a network file system, where the
/// lock of another machine may not be seen, the holder also writes a sign of life into the file. Free of LibTorch.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace trainer::checkpoint {

struct LockOptions {
  std::string boot{};                    ///< names this machine since its start; empty: the kernel's boot id
  std::chrono::milliseconds beat{5000};  ///< between signs of life
  std::optional<bool> beats{};           ///< give them; empty: on a network file system
};

class RunLock {
 public:
  static constexpr int kPatience = 3;  ///< beats that a holder may miss before it counts as dead

  /// Creates the folder and takes the lock. After a run on another machine that gave signs of life and did not end by
  /// itself, waits kPatience beats for one more. Throws Error (locked) naming the process that holds it; io.
  explicit RunLock(const std::filesystem::path& run_folder, LockOptions options = {});
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Throws Error (locked, RUN_LOCK_LOST) when another run took the folder over: it began after the folder was moved or
  /// deleted under this one, or, where signs of life are given, this one gave none for so long. Where the folder or its
  /// lock is gone and nobody else is there, both are made again, with a warning. Throws Error (io).
  void require_mine();

  /// Whether the folder is this run's now; changes nothing. False, too, where it cannot be looked at.
  [[nodiscard]] bool is_mine();

  /// Who holds the folder on this machine, in words; nullopt: nobody.
  static std::optional<std::string> holder(const std::filesystem::path& run_folder);

 private:
  [[nodiscard]] std::string text() const;
  void take(bool locked);
  void look();
  void take_anew(bool copied);
  [[nodiscard]] bool is_named() const;
  [[noreturn]] void lost() const;
  void write_text() const;
  void give_signs();

  std::filesystem::path file_;
  LockOptions options_;
  std::string about_, token_;
  int fd_ = -1;
  std::vector<int> moved_;  ///< locks of folders that were moved away: the log there is still this run's
  bool beats_ = false;
  std::atomic<unsigned> beat_{0};

  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace trainer::checkpoint
