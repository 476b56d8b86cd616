/// @file Saving on a disk that fails or is full: what is tried again, how often, and when it is given up.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace trainer::checkpoint {

struct Patience {
  int attempts = 3;                         ///< in all, when the disk reports an error
  std::chrono::milliseconds pause{500};     ///< before the second attempt; twice as long before each further one
  std::chrono::milliseconds room{0};        ///< how long to wait for room on a full disk
  std::chrono::milliseconds every{30'000};  ///< between looks at a full disk
  std::function<bool()> make_room{};        ///< asked once when the disk is full; true: tried again at once
  std::function<void(std::chrono::milliseconds)> sleep{};  ///< tests replace it; empty: the thread sleeps
};

/// Calls `save` until it succeeds or patience ends; what it then threw goes on. An error of the disk (exit code io) is
/// tried again, each attempt writing new files: after a failed fsync the kernel may call lost data clean. A full disk
/// (IO_NO_SPACE) is waited for. Anything else is thrown at once. `note` is told why there is a wait.
void save_patiently(const std::function<void()>& save, const Patience& patience,
                    const std::function<void(const std::string&)>& note);

}  // namespace trainer::checkpoint
