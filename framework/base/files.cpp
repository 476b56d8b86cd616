#include <base/files.hpp>
#include <base/heartbeat.hpp>

#include <trainer/sdk/error.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

namespace trainer {
namespace {

namespace fs = std::filesystem;

const char* advice_for(int number) {
  if (number == ENOSPC || number == EDQUOT) return "; free some space or write elsewhere";
  if (number == EFBIG) return "; raise the limit on the size of files (ulimit -f), or write to another file system";
  return "";
}

Error io_error(const std::string& doing, const fs::path& file, int number) {
  const bool full = number == ENOSPC || number == EDQUOT;
  return {ExitCode::io, "cannot " + doing + " " + file.string() + ": " + std::strerror(number) + advice_for(number),
          full                                  ? "IO_NO_SPACE"
          : number == EFBIG                     ? "IO_FILE_SIZE"
          : number == EACCES || number == EPERM ? "IO_PERMISSION"
                                                : ""};
}

/// Closes on scope exit; `close_checked` where a late write error must be seen.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool close_checked() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

void write_all(int fd, std::string_view content, const fs::path& file) {
  while (!content.empty()) {
    beat();
    const ssize_t count = ::write(fd, content.data(), content.size());
    if (count >= 0)
      content.remove_prefix(static_cast<std::size_t>(count));
    else if (errno != EINTR)
      throw io_error("write", file, errno);
  }
}

std::string read_all(int fd, std::size_t expected, std::size_t limit, const fs::path& file) {
  // One byte more than allowed, to see a file that grows while it is read.
  std::string content(std::min(expected, limit) + 1, '\0');
  std::size_t filled = 0;
  for (;;) {
    if (filled == content.size()) content.resize(std::min(2 * content.size(), limit + 1));
    if (filled == limit + 1) return content;
    const ssize_t count = ::read(fd, content.data() + filled, content.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw io_error("read", file, errno);
    beat();
    if (count == 0) break;
    filled += static_cast<std::size_t>(count);
  }
  content.resize(filled);
  return content;
}

fs::path folder_of(const fs::path& file) { return file.has_parent_path() ? file.parent_path() : fs::path("."); }

/// What to do about a path that cannot be looked at; empty where the reason says enough.
const char* advice_on_looking(int number) {
  if (number == EACCES || number == EPERM)
    return "; allow this user to read it and to enter the folders on the way to it";
  if (number == ELOOP) return "; a link in it leads back to itself: name the file or folder meant";
  if (number == ENAMETOOLONG) return "; shorten it: a name has at most 255 bytes, a path 4095";
  return number == ENOENT || number == ENOTDIR ? "; check how it is spelled" : "";
}

}  // namespace

Error error_of(const fs::filesystem_error& error) {
  const int number = error.code().value();
  const bool missing = number == ENOENT || number == ENOTDIR;
  return {missing ? ExitCode::not_found : ExitCode::io,
          error.path1().string() + ": " + error.code().message() + advice_on_looking(number),
          number == EACCES || number == EPERM ? "IO_PERMISSION" : ""};
}

std::string read_file(const fs::path& file, std::size_t limit, std::string_view what) {
  const std::string named = std::string(what) + " " + file.string();
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  const Descriptor fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) {
    const bool missing = errno == ENOENT || errno == ENOTDIR;
    throw Error(missing ? ExitCode::not_found : ExitCode::io, "cannot open " + named + ": " + std::strerror(errno));
  }
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw io_error("read", file, errno);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ExitCode::bad_input, named + " is " + (S_ISDIR(status.st_mode) ? "a folder" : "not a regular file"));
  }
  std::string content = read_all(fd.get(), static_cast<std::size_t>(status.st_size), limit, file);
  if (content.size() > limit) {
    throw Error(ExitCode::bad_input, named + " is larger than " + std::to_string(limit) + " bytes");
  }
  return content;
}

void require_replaceable(const fs::path& file) {
  std::error_code failed;
  const fs::file_status status = fs::status(file, failed);
  if (status.type() == fs::file_type::none) throw error_of(fs::filesystem_error("", file, failed));
  if (!fs::exists(status) || fs::is_regular_file(status)) return;
  throw Error(ExitCode::io, "cannot replace " + file.string() + ": it is " +
                                (fs::is_directory(status) ? "a folder" : "a device, FIFO or socket, not a file") +
                                "; name another file");
}

void write_file_atomically(const fs::path& file, std::string_view content) {
  require_replaceable(file);
  static std::atomic<unsigned> serial{0};
  const fs::path temp = folder_of(file) / ("." + file.filename().string() + ".tmp-" + std::to_string(::getpid()) + "-" +
                                           std::to_string(serial++));
  Descriptor fd(::open(temp.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (fd.get() < 0) throw io_error("create", temp, errno);
  try {
    write_all(fd.get(), content, temp);
    if (::fdatasync(fd.get()) != 0) throw io_error("sync", temp, errno);
    if (!fd.close_checked()) throw io_error("write", temp, errno);
    if (::rename(temp.c_str(), file.c_str()) != 0) throw io_error("replace", file, errno);
  } catch (...) {
    ::unlink(temp.c_str());
    throw;
  }
  sync_folder(folder_of(file));
}

void sync_folder(const fs::path& folder) {
  const Descriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) throw io_error("open folder", folder, errno);
  if (::fsync(fd.get()) != 0) throw io_error("sync folder", folder, errno);
}

void sync_name_of(const fs::path& folder) {
  const fs::path whole = fs::absolute(folder).lexically_normal();
  const fs::path parent = (whole.has_filename() ? whole : whole.parent_path()).parent_path();
  const Descriptor above(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (above.get() >= 0) {
    if (::fsync(above.get()) != 0) throw io_error("sync folder", parent, errno);
    return;
  }
  if (errno != EACCES) throw io_error("open folder", parent, errno);
  // A parent that may not be listed, as the folder of everyone's folders on some machines: all of its file system.
  const Descriptor itself(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (itself.get() < 0) throw io_error("open folder", folder, errno);
  if (::syncfs(itself.get()) != 0) throw io_error("sync the file system of", folder, errno);
}

void make_folders(const fs::path& folder) {
  std::error_code error;
  if (folder.empty() || fs::is_directory(folder, error)) return;  // empty: the parent of a bare file name
  const fs::path parent = folder.parent_path();
  if (!parent.empty() && fs::is_directory(parent, error))
    sync_name_of(parent);  // who made it may have been killed before that
  else
    make_folders(parent);
  if (::mkdir(folder.c_str(), 0777) == 0) return sync_name_of(folder);
  const int number = errno;
  if (number == EEXIST && fs::is_directory(folder, error)) return;  // another process made it
  if (number == EEXIST)
    throw Error(ExitCode::io, "cannot create folder " + folder.string() + ": a file of that name exists");
  throw io_error("create folder", folder, number);
}

namespace {

/// The XDG base directory specification has relative paths ignored.
fs::path user_folder(const char* variable, const char* below_home) {
  const auto from = [](const char* name) {
    const char* value = std::getenv(name);
    return fs::path(value == nullptr ? "" : value);
  };
  if (const fs::path folder = from(variable); folder.is_absolute()) return folder / "trainer";
  if (const fs::path home = from("HOME"); home.is_absolute()) return home / below_home / "trainer";
  return {};
}

}  // namespace

fs::path user_cache_folder() { return user_folder("XDG_CACHE_HOME", ".cache"); }

fs::path user_config_folder() { return user_folder("XDG_CONFIG_HOME", ".config"); }

}  // namespace trainer
