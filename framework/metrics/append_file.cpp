#include <metrics/append_file.hpp>

#include <trainer/sdk/error.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace trainer::metrics {
namespace {

Error io_error(const std::string& doing, const std::filesystem::path& file) {
  return {ExitCode::io, "cannot " + doing + " " + file.string() + ": " + std::strerror(errno)};
}

}  // namespace

AppendFile::AppendFile(std::filesystem::path file, Mode mode)
    : path_(std::move(file)),
      // O_NONBLOCK: opening a FIFO must not wait for a reader. O_NOFOLLOW: a link in a run folder must not have another
      // file grow or cut.
      fd_(::open(
          path_.c_str(),
          O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW | (mode == Mode::create_new ? O_EXCL : 0),
          0666)) {
  if (fd_ < 0 && errno == ELOOP) throw Error(ExitCode::io, path_.string() + ": is a symbolic link; delete it");
  if (fd_ < 0) throw io_error("open", path_);
}

AppendFile::~AppendFile() { ::close(fd_); }

void AppendFile::append(std::string_view record) {
  const off_t before = ::lseek(fd_, 0, SEEK_END);
  while (!record.empty()) {
    const ssize_t count = ::write(fd_, record.data(), record.size());
    if (count >= 0) {
      record.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      const Error error = io_error("write", path_);
      // Half a record would spoil the next one, too.
      if (before >= 0 && ::ftruncate(fd_, before) != 0) throw error.context("half a record is left");
      throw error;
    }
  }
}

void AppendFile::truncate(uint64_t size) {
  if (::ftruncate(fd_, static_cast<off_t>(size)) != 0) throw io_error("cut", path_);
}

}  // namespace trainer::metrics
