#include <weights/atomic_file.hpp>

#include <fcntl.h>
#include <unistd.h>
#include <base/files.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

namespace trainer::weights {
namespace {

std::filesystem::path folder_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path target) : target_(std::move(target)) {
  require_replaceable(target_);
  static std::atomic<unsigned> serial{0};
  temp_ = folder_of(target_) / ("." + target_.filename().string().substr(0, 200) + ".tmp-" +
                                std::to_string(::getpid()) + "-" + std::to_string(serial++));
  fd_ = ::open(temp_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("create a file beside", errno);
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temp_.empty()) ::unlink(temp_.c_str());
}

void AtomicFile::fail(const std::string& doing, int number) const {
  const bool full = number == ENOSPC || number == EDQUOT, limited = number == EFBIG;
  throw Error(ExitCode::io,
              "cannot " + doing + " " + target_.string() + ": " + std::strerror(number) +
                  (full      ? "; free some space or write elsewhere"
                   : limited ? "; raise the limit on the size of files (ulimit -f), or write to another file system"
                             : ""),
              full      ? "IO_NO_SPACE"
              : limited ? "IO_FILE_SIZE"
                        : "");
}

void AtomicFile::reserve(uint64_t bytes) {
  if (bytes == 0 || ::fallocate(fd_, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) == 0) return;
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
    fail("reserve " + std::to_string(bytes) + " bytes for", errno);
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  const auto* cursor = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t count = ::write(fd_, cursor, std::min(bytes, std::size_t{1} << 30));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("write", errno);
    cursor += count;
    bytes -= static_cast<std::size_t>(count);
    written_ += static_cast<uint64_t>(count);
  }
}

void AtomicFile::make_durable() {
  if (::fdatasync(fd_) != 0) fail("make durable", errno);
  // NFS reports a full disk or quota here.
  if (::close(std::exchange(fd_, -1)) != 0) fail("write", errno);
}

void AtomicFile::take_name() {
  if (::rename(temp_.c_str(), target_.c_str()) != 0) fail("replace", errno);
  temp_.clear();
}

void AtomicFile::commit() {
  make_durable();
  take_name();
  sync_folder(folder_of(target_));
}

void AtomicFile::commit(std::span<const std::unique_ptr<AtomicFile>> files) {
  std::set<std::filesystem::path> folders;
  for (const auto& file : files) file->make_durable();
  for (const auto& file : files) {
    file->take_name();
    folders.insert(folder_of(file->target_));
  }
  for (const std::filesystem::path& folder : folders) sync_folder(folder);
}

}  // namespace trainer::weights
