#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <base/files.hpp>
#include <checkpoint/run_lock.hpp>
#include <trainer/sdk/error.hpp>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <string>

namespace trainer::checkpoint {

RunLock::RunLock(const std::filesystem::path& run_folder) {
  make_folders(run_folder);
  const std::filesystem::path file = run_folder / ".lock";
  fd_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) throw Error(ExitCode::io, file.string() + ": cannot be opened: " + std::strerror(errno));
  std::array<char, 256> text{};
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    const int number = errno;
    if (number != EWOULDBLOCK) {
      ::close(fd_);
      throw Error(ExitCode::io, file.string() + ": cannot be locked: " + std::strerror(number));
    }
    const ssize_t length = ::pread(fd_, text.data(), text.size() - 1, 0);
    ::close(fd_);
    const std::string holder = length > 0 ? std::string(text.data(), static_cast<std::size_t>(length)) : "unknown";
    throw Error(ExitCode::locked,
                run_folder.string() + ": another run is writing here (" + holder +
                    "); wait for it, or choose another "
                    "run.output",
                "RUN_LOCKED");
  }
  std::array<char, 128> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 32> since{};
  std::strftime(since.data(), since.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  const std::string mine = "pid " + std::to_string(::getpid()) + " on " + host.data() + " since " + since.data();
  // The text only helps people; the lock itself is the kernel's.
  if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, mine.data(), mine.size(), 0) < 0) {
    const int number = errno;
    ::close(fd_);  // no destructor runs for an object that was not made
    throw Error(ExitCode::io, file.string() + ": cannot be written: " + std::strerror(number));
  }
}

RunLock::~RunLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace trainer::checkpoint
