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
      fd_(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | (mode == Mode::create_new ? O_EXCL : 0),
                 0666)) {
  if (fd_ < 0) throw io_error("open", path_);
}

AppendFile::~AppendFile() { ::close(fd_); }

void AppendFile::append(std::string_view record) {
  while (!record.empty()) {
    const ssize_t count = ::write(fd_, record.data(), record.size());
    if (count >= 0)
      record.remove_prefix(static_cast<std::size_t>(count));
    else if (errno != EINTR)
      throw io_error("write", path_);
  }
}

void AppendFile::truncate(uint64_t size) {
  if (::ftruncate(fd_, static_cast<off_t>(size)) != 0) throw io_error("cut", path_);
}

}  // namespace trainer::metrics
