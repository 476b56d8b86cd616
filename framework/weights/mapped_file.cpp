#include <weights/mapped_file.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <trainer/sdk/error.hpp>

#include <cerrno>
#include <cstring>
#include <utility>

namespace trainer::weights {
namespace {

int64_t modification_time(const struct stat& status) {
  return status.st_mtim.tv_sec * int64_t{1'000'000'000} + status.st_mtim.tv_nsec;
}

std::string file_kind(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a named pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

[[noreturn]] void fail_open(const std::filesystem::path& file, int number) {
  const std::string name = file.string();
  if (number == ENOENT || number == ENOTDIR) throw Error(ExitCode::not_found, "there is no file " + name);
  if (number == ENXIO)
    throw Error(ExitCode::bad_input, name + " is a socket or a device, not a file", "ST_NOT_REGULAR");
  throw Error(ExitCode::io, "cannot open " + name + ": " + std::strerror(number));
}

}  // namespace

MappedRegion::MappedRegion(MappedRegion&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), length_(other.length_), skip_(other.skip_) {}

MappedRegion::~MappedRegion() {
  if (base_ != nullptr) ::munmap(base_, length_);
}

MappedFile MappedFile::open(const std::filesystem::path& file) { return open_at(AT_FDCWD, file.string(), file, true); }

MappedFile MappedFile::open_at(int folder, const std::string& name, const std::filesystem::path& shown,
                               bool follow_links) {
  // O_NONBLOCK: opening a named pipe must not wait for a writer. It means nothing for a regular file.
  const int flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC | (follow_links ? 0 : O_NOFOLLOW);
  MappedFile file(::openat(folder, name.c_str(), flags), shown);
  if (!file.is_open()) {
    if (errno == ELOOP && !follow_links) return file;
    fail_open(shown, errno);
  }
  file.remember_status();
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)),
      size_(other.size_),
      device_(other.device_),
      inode_(other.inode_),
      modified_(other.modified_) {}

MappedFile::~MappedFile() {
  if (fd_ >= 0) ::close(fd_);
}

void MappedFile::remember_status() {
  struct stat status {};
  if (::fstat(fd_, &status) != 0)
    throw Error(ExitCode::io, "cannot read " + path_.string() + ": " + std::strerror(errno));
  if (!S_ISREG(status.st_mode)) {
    throw Error(ExitCode::bad_input, path_.string() + " is " + file_kind(status.st_mode) + ", not a file",
                "ST_NOT_REGULAR");
  }
  size_ = static_cast<uint64_t>(status.st_size);
  device_ = status.st_dev;
  inode_ = status.st_ino;
  modified_ = modification_time(status);
}

bool MappedFile::same_file(const MappedFile& other) const { return device_ == other.device_ && inode_ == other.inode_; }

void MappedFile::check_unchanged() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0)
    throw Error(ExitCode::io, "cannot read " + path_.string() + ": " + std::strerror(errno));
  if (static_cast<uint64_t>(status.st_size) != size_) {
    throw Error(ExitCode::bad_input,
                path_.string() + ": it had " + std::to_string(size_) + " bytes when it was opened and has " +
                    std::to_string(status.st_size) +
                    " now: another program writes to it; start again "
                    "when that has ended",
                "ST_CHANGED");
  }
  if (modification_time(status) != modified_) {
    throw Error(ExitCode::bad_input,
                path_.string() +
                    ": it was modified after it was opened: another program writes to it; "
                    "start again when that has ended",
                "ST_CHANGED");
  }
}

void MappedFile::read(uint64_t offset, void* to, std::size_t bytes) const {
  auto* cursor = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t count = ::pread(fd_, cursor, bytes, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw Error(ExitCode::io, "cannot read " + path_.string() + ": " + std::strerror(errno));
    if (count == 0) {
      throw Error(ExitCode::bad_input,
                  path_.string() + ": it ends at byte " + std::to_string(offset) + ", it had " + std::to_string(size_) +
                      " bytes when it was opened: another program cut it",
                  "ST_CHANGED");
    }
    cursor += count;
    offset += static_cast<uint64_t>(count);
    bytes -= static_cast<std::size_t>(count);
  }
  check_unchanged();
}

MappedRegion MappedFile::map(uint64_t offset, std::size_t bytes) const {
  check_unchanged();
  static const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t skip = offset % page;
  // Writable and private: a caller that writes by mistake gets copies of pages, not a crash, and the file stays as it
  // is. NORESERVE: a mapping larger than free memory is fine, its clean pages can always be dropped.
  void* base = ::mmap(nullptr, bytes + skip, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd_,
                      static_cast<off_t>(offset - skip));
  if (base == MAP_FAILED) throw Error(ExitCode::io, "cannot map " + path_.string() + ": " + std::strerror(errno));
  MappedRegion region(base, bytes + skip, skip);
#ifdef MADV_POPULATE_READ
  // Fills the pages now: a failing disk is an error here, where touching the pages would end the process by SIGBUS.
  // Kernels before 5.14 do not know it; the pages then come when they are touched.
  if (::madvise(base, bytes + skip, MADV_POPULATE_READ) != 0 && errno == EFAULT) {
    check_unchanged();
    throw Error(ExitCode::io, "cannot read " + path_.string() + ": the disk reports an error");
  }
#endif
  return region;
}

}  // namespace trainer::weights
