#include <fcntl.h>
#include <unistd.h>

#include <checkpoint/reserve.hpp>
#include <trainer/sdk/error.hpp>

#include <cerrno>
#include <cstring>

namespace trainer::checkpoint {

void Reserve::hold(uint64_t bytes) const {
  const int fd = ::open(file_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (fd < 0 && errno == ELOOP) throw Error(ExitCode::io, file_.string() + ": is a symbolic link; delete it");
  if (fd < 0) throw Error(ExitCode::io, file_.string() + ": cannot be opened: " + std::strerror(errno));
  // Where the file system cannot reserve, the C library writes zeros.
  const int number = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  ::close(fd);
  if (number == 0) return;
  release();  // part of the room helps nobody
  const bool full = number == ENOSPC || number == EDQUOT;
  throw Error(ExitCode::io,
              file_.string() + ": " + std::to_string(bytes) + " bytes cannot be kept: " + std::strerror(number),
              full ? "IO_NO_SPACE" : "");
}

bool Reserve::release() const {
  std::error_code ignored;
  return std::filesystem::remove(file_, ignored);
}

}  // namespace trainer::checkpoint
