/// @file The C library's file calls of this program and of libstdc++ pass through here: performed, made to fail, or
/// noted in the journal. Calls outside the recorded folder go straight on.
// Both names of each call are defined here: with this macro the headers would turn open into open64.
#undef _FILE_OFFSET_BITS
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdarg>
#include <map>
#include <optional>

#include "journal.hpp"

namespace trainer::faults {
namespace {

namespace fs = std::filesystem;
using Kind = Operation::Kind;

Journal* current = nullptr;
struct OpenFile {
  std::string path;
  int64_t file = 0;  ///< 0: a folder
};
std::map<int, OpenFile> open_files;
int64_t files_made = 0;

template <typename Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

/// The path below the recorded folder, or nothing. `folder` as in openat.
std::optional<std::string> inside(int folder, const char* path) {
  if (current == nullptr) return {};
  fs::path whole = path;
  if (whole.is_relative()) {
    if (folder == AT_FDCWD) {
      whole = fs::current_path() / whole;
    } else {
      std::array<char, 4096> text{};
      const std::string link = "/proc/self/fd/" + std::to_string(folder);
      if (::readlink(link.c_str(), text.data(), text.size() - 1) < 0) return {};
      whole = fs::path(text.data()) / whole;
    }
  }
  const std::string text = whole.lexically_normal().string(), root = current->folder().string();
  if (text == root || text == root + "/") return "";
  if (!text.starts_with(root + "/")) return {};
  std::string below = text.substr(root.size() + 1);
  if (below.ends_with('/')) below.pop_back();
  return below;
}

/// Performs a call on a name unless it is to fail; notes it when it succeeded.
template <typename Call>
int on_name(Operation operation, const Call& call) {
  if (const Failure* failure = current->next(operation.kind)) {
    operation.lost = failure->loses && operation.kind == Kind::sync;
    if (operation.lost) current->add(std::move(operation));
    return errno = failure->error, -1;
  }
  const int result = call();
  if (result == 0) current->add(std::move(operation));
  return result;
}

/// The same for an open file.
template <typename Call>
int on_file(int fd, Kind kind, int64_t offset, const Call& call) {
  const auto it = current == nullptr ? open_files.end() : open_files.find(fd);
  if (it == open_files.end()) return call();
  return on_name({kind, it->second.path, "", it->second.file, offset, ""}, call);
}

template <typename Call>
int opened(int folder, const char* path, int flags, const Call& call) {
  const auto below = inside(folder, path);
  // What the library closes by itself, as closedir does, is not seen here: its number may come again.
  const auto anew = [](int fd) { return current != nullptr && fd >= 0 ? (open_files.erase(fd), fd) : fd; };
  if (!below) return anew(call());
  const bool writes = (flags & O_ACCMODE) != O_RDONLY, creates = (flags & O_CREAT) != 0;
  struct stat status {};
  const bool fresh = creates && ::fstatat(folder, path, &status, AT_SYMLINK_NOFOLLOW) != 0;
  if (fresh)
    if (const Failure* failure = current->next(Kind::create)) return errno = failure->error, -1;
  const int fd = anew(call());
  if (fd < 0) return fd;
  const bool is_folder = ::fstat(fd, &status) == 0 && S_ISDIR(status.st_mode);
  if (!writes && !is_folder) return fd;
  open_files[fd] = {*below, is_folder ? 0 : ++files_made};
  if (fresh) current->add({Kind::create, *below, "", files_made, 0, ""});
  return fd;
}

ssize_t written(int fd, const void* data, std::size_t bytes, std::optional<int64_t> at) {
  const auto perform = [&](std::size_t count) {
    return at ? real<ssize_t (*)(int, const void*, std::size_t, off_t)>("pwrite")(fd, data, count, *at)
              : real<ssize_t (*)(int, const void*, std::size_t)>("write")(fd, data, count);
  };
  const auto it = current == nullptr ? open_files.end() : open_files.find(fd);
  if (it == open_files.end()) return perform(bytes);
  const Failure* failure = current->next(Kind::write);
  if (failure != nullptr && !failure->short_write) return errno = failure->error, -1;
  const int64_t offset = at ? *at : ::lseek(fd, 0, SEEK_CUR);
  const ssize_t count = perform(failure != nullptr ? (bytes + 1) / 2 : bytes);
  if (count > 0)
    current->add({Kind::write, it->second.path, "", it->second.file, offset,
                  std::string(static_cast<const char*>(data), static_cast<std::size_t>(count))});
  return count;
}

int renamed(int from_folder, const char* from, int to_folder, const char* to, const std::function<int()>& call) {
  const auto source = inside(from_folder, from), target = inside(to_folder, to);
  if (!source || !target) return call();
  return on_name({Kind::rename, *source, *target, 0, 0, ""}, call);
}

}  // namespace

Journal::Journal(fs::path folder) : folder_(std::move(folder)) { current = this; }
Journal::~Journal() {
  current = nullptr;
  open_files.clear();
}
const Failure* Journal::next(Operation::Kind kind) {
  const std::size_t number = calls_++;
  return fail ? fail(number, kind) : nullptr;
}
Journal* recording() { return current; }

}  // namespace trainer::faults

// NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): the C library's own signatures
using namespace trainer::faults;  // the calls below are the C library's, not ours
using OperationKind = Operation::Kind;

#define TRAINER_MODE(flags)                     \
  mode_t mode = 0;                              \
  if (((flags) & (O_CREAT | O_TMPFILE)) != 0) { \
    va_list more;                               \
    va_start(more, flags);                      \
    mode = va_arg(more, mode_t);                \
    va_end(more);                               \
  }

extern "C" {
int open(const char* path, int flags, ...) {
  TRAINER_MODE(flags)
  return opened(AT_FDCWD, path, flags, [&] { return real<int (*)(const char*, int, ...)>("open")(path, flags, mode); });
}
int open64(const char* path, int flags, ...) {
  TRAINER_MODE(flags)
  return opened(AT_FDCWD, path, flags, [&] { return real<int (*)(const char*, int, ...)>("open")(path, flags, mode); });
}
int openat(int folder, const char* path, int flags, ...) {
  TRAINER_MODE(flags)
  return opened(folder, path, flags,
                [&] { return real<int (*)(int, const char*, int, ...)>("openat")(folder, path, flags, mode); });
}
int openat64(int folder, const char* path, int flags, ...) {
  TRAINER_MODE(flags)
  return opened(folder, path, flags,
                [&] { return real<int (*)(int, const char*, int, ...)>("openat")(folder, path, flags, mode); });
}
int close(int fd) {
  const int result = on_file(fd, OperationKind::close, 0, [&] { return real<int (*)(int)>("close")(fd); });
  if (recording() != nullptr) open_files.erase(fd);
  return result;
}
ssize_t write(int fd, const void* data, size_t bytes) { return written(fd, data, bytes, {}); }
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t at) { return written(fd, data, bytes, at); }
ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t at) { return written(fd, data, bytes, at); }
int fsync(int fd) {
  return on_file(fd, OperationKind::sync, 0, [&] { return real<int (*)(int)>("fsync")(fd); });
}
int fdatasync(int fd) {
  return on_file(fd, OperationKind::sync, 0, [&] { return real<int (*)(int)>("fdatasync")(fd); });
}
int ftruncate(int fd, off_t size) noexcept {
  return on_file(fd, OperationKind::truncate, size, [&] { return real<int (*)(int, off_t)>("ftruncate")(fd, size); });
}
int ftruncate64(int fd, off64_t size) noexcept { return ftruncate(fd, size); }
int fallocate(int fd, int mode, off_t offset, off_t size) {
  return on_file(fd, OperationKind::allocate, 0,
                 [&] { return real<int (*)(int, int, off_t, off_t)>("fallocate")(fd, mode, offset, size); });
}
int fallocate64(int fd, int mode, off64_t offset, off64_t size) { return fallocate(fd, mode, offset, size); }
int posix_fallocate(int fd, off_t offset, off_t size) {  // returns its error
  const int before = errno;
  const int result = on_file(fd, OperationKind::allocate, 0, [&] {
    const int number = real<int (*)(int, off_t, off_t)>("posix_fallocate")(fd, offset, size);
    return number == 0 ? 0 : (errno = number, -1);
  });
  const int number = result == 0 ? 0 : errno;
  errno = before;
  return number;
}
int posix_fallocate64(int fd, off64_t offset, off64_t size) { return posix_fallocate(fd, offset, size); }
int rename(const char* from, const char* to) noexcept {
  return renamed(AT_FDCWD, from, AT_FDCWD, to,
                 [&] { return real<int (*)(const char*, const char*)>("rename")(from, to); });
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  return renamed(from_folder, from, to_folder, to, [&] {
    return real<int (*)(int, const char*, int, const char*)>("renameat")(from_folder, from, to_folder, to);
  });
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  return renamed(from_folder, from, to_folder, to, [&] {
    return real<int (*)(int, const char*, int, const char*, unsigned)>("renameat2")(from_folder, from, to_folder, to,
                                                                                    flags);
  });
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  const auto call = [&] { return real<int (*)(int, const char*, int)>("unlinkat")(folder, path, flags); };
  const auto below = inside(folder, path);
  if (!below) return call();
  return on_name({(flags & AT_REMOVEDIR) != 0 ? OperationKind::rmdir : OperationKind::unlink, *below, "", 0, 0, ""},
                 call);
}
int unlink(const char* path) noexcept { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char* path) noexcept { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char* path) noexcept {
  struct stat status {};
  const bool folder = ::lstat(path, &status) == 0 && S_ISDIR(status.st_mode);
  return unlinkat(AT_FDCWD, path, folder ? AT_REMOVEDIR : 0);
}
int mkdirat(int folder, const char* path, mode_t mode) noexcept {
  const auto call = [&] { return real<int (*)(int, const char*, mode_t)>("mkdirat")(folder, path, mode); };
  const auto below = inside(folder, path);
  struct stat status {};
  if (!below || ::fstatat(folder, path, &status, 0) == 0) return call();
  return on_name({OperationKind::mkdir, *below, "", 0, 0, ""}, call);
}
int mkdir(const char* path, mode_t mode) noexcept { return mkdirat(AT_FDCWD, path, mode); }
}
// NOLINTEND(readability-inconsistent-declaration-parameter-name)
