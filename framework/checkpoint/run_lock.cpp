#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <base/entries.hpp>
#include <base/files.hpp>
#include <base/log.hpp>
#include <checkpoint/run_lock.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <random>
#include <sstream>
#include <utility>

namespace trainer::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLockLimit = 4096;
constexpr const char* kNoSigns = "-";
constexpr std::chrono::milliseconds kLook{50};  ///< more than holder() holds the lock

/// What RUN/.lock says: a line for people, then "token T boot B beat N".
struct Holder {
  std::string about, token, boot, beat;
};

Holder parse(const std::string& text) {
  Holder holder;
  std::istringstream lines(text);
  std::string second, word;
  std::getline(lines, holder.about);
  std::getline(lines, second);
  std::istringstream words(second);
  while (words >> word) {
    std::string* const place = word == "token"  ? &holder.token
                               : word == "boot" ? &holder.boot
                               : word == "beat" ? &holder.beat
                                                : nullptr;
    if (place != nullptr) words >> *place;
  }
  return holder;
}

/// Opened anew each time: that is when a network file system looks at what other machines wrote.
Holder read_holder(const fs::path& file) {
  try {
    return parse(read_file(file, kLockLimit, "lock"));
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::not_found && error.exit_code() != ExitCode::bad_input) throw;
    return {};
  }
}

std::string boot_id() {
  try {
    std::string text = read_file("/proc/sys/kernel/random/boot_id", kLockLimit, "boot id");
    text.erase(std::remove(text.begin(), text.end(), '\n'), text.end());
    return text;
  } catch (const Error&) {
    return "unknown";
  }
}

std::string new_token() {
  std::random_device device;
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%08x%08x", device(), device());
  return text.data();
}

std::string about_this_process() {
  std::array<char, 128> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 32> since{};
  std::strftime(since.data(), since.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return "pid " + std::to_string(::getpid()) + " on " + host.data() + " since " + since.data();
}

/// File systems that other machines write to, by the kernel's numbers (linux/magic.h and the file systems' own).
bool on_network(int fd) {
  static constexpr std::array<uint32_t, 13> kNetwork{
      0x6969,      // NFS
      0x517B,      // SMB
      0xFF534D42,  // CIFS
      0xFE534D42,  // SMB 2
      0x0BD00BD0,  // Lustre
      0x47504653,  // GPFS
      0x00C36400,  // Ceph
      0x19830326,  // BeeGFS
      0x65735546,  // FUSE: sshfs, GlusterFS, s3fs and others
      0x01021997,  // 9P
      0x7461636F,  // OCFS2
      0x01161970,  // GFS2
      0x5346414F,  // AFS
  };
  struct statfs status {};
  if (::fstatfs(fd, &status) != 0) return false;
  return std::find(kNetwork.begin(), kNetwork.end(), static_cast<uint32_t>(status.f_type)) != kNetwork.end();
}

[[noreturn]] void refuse(const fs::path& file, const std::string& about) {
  throw Error(ExitCode::locked,
              file.parent_path().string() + ": another run is writing here (" + (about.empty() ? "unknown" : about) +
                  "); wait for it, or choose another run.output",
              "RUN_LOCKED");
}

/// The flock, without waiting for it.
bool try_lock(int fd) {
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
  if (errno != EWOULDBLOCK) return false;
  std::this_thread::sleep_for(kLook);  // perhaps held only by one that looks who holds it, see holder()
  return ::flock(fd, LOCK_EX | LOCK_NB) == 0;
}

/// After try_lock: whether this file system knows no locks.
bool knows_no_locks() { return errno == ENOLCK || errno == EOPNOTSUPP || errno == ENOSYS; }

int open_lock(const fs::path& file, int more) {
  return ::open(file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | more, 0644);
}

[[noreturn]] void no_permission(const fs::path& folder) {
  throw Error(ExitCode::locked, folder.string() + ": no permission to write there; choose another run.output",
              "IO_PERMISSION");
}

/// Returns when the holder counts as dead.
void wait_for_sign(const fs::path& file, const Holder& holder, std::chrono::milliseconds beat) {
  const auto seconds = RunLock::kPatience * std::chrono::ceil<std::chrono::seconds>(beat).count();
  log_warning(file.parent_path().string() + ": the last run here did not end by itself (" + holder.about +
              "); looking for a sign of life of it, " + std::to_string(seconds) + " s");
  for (int i = 0; i < 2 * RunLock::kPatience; ++i) {
    std::this_thread::sleep_for(beat / 2);
    const Holder now = read_holder(file);
    if (now.token != holder.token || now.beat != holder.beat) refuse(file, now.about);
  }
}

/// Signals are for the thread that trains.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

RunLock::RunLock(const fs::path& run_folder, LockOptions options)
    : file_(run_folder / ".lock"), options_(std::move(options)), about_(about_this_process()), token_(new_token()) {
  try {
    make_folders(run_folder);
  } catch (const Error& error) {
    if (error.code() == "IO_PERMISSION") no_permission(run_folder);
    throw;
  }
  if (options_.boot.empty()) options_.boot = boot_id();
  fd_ = open_lock(file_, O_CREAT);
  if (fd_ < 0 && errno == EACCES) no_permission(run_folder);
  if (fd_ < 0 && errno == ELOOP) throw Error(ExitCode::io, file_.string() + ": is a symbolic link; delete it");
  if (fd_ < 0) throw Error(ExitCode::io, file_.string() + ": cannot be opened: " + std::strerror(errno));
  try {
    const bool locked = try_lock(fd_);
    if (!locked && errno == EWOULDBLOCK) refuse(file_, read_holder(file_).about);
    if (!locked && !knows_no_locks())
      throw Error(ExitCode::io, file_.string() + ": cannot be locked: " + std::strerror(errno));
    take(locked);
  } catch (...) {
    ::close(fd_);  // no destructor runs for an object that was not made
    throw;
  }
}

void RunLock::take(bool locked) {
  beats_ = options_.beats.value_or(!locked || on_network(fd_));
  // On one machine the kernel's lock tells; a holder without signs of life was alone on its file system.
  const Holder before = read_holder(file_);
  const bool signs = !before.token.empty() && before.beat != kNoSigns;
  if (signs && (!locked || before.boot != options_.boot)) wait_for_sign(file_, before, options_.beat);
  write_text();
  if (!beats_) return;
  if (!locked) {  // of two that start at once the one that wrote last stays
    std::this_thread::sleep_for(options_.beat);
    require_mine();
  }
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { give_signs(); });
}

std::string RunLock::text() const {
  std::array<char, 16> beat{};
  std::snprintf(beat.data(), beat.size(), "%010u", beat_.load());
  return about_ + "\ntoken " + token_ + " boot " + options_.boot + " beat " + (beats_ ? beat.data() : kNoSigns) + "\n";
}

void RunLock::write_text() const {
  const std::string mine = text();
  if (::ftruncate(fd_, static_cast<off_t>(mine.size())) != 0 || ::pwrite(fd_, mine.data(), mine.size(), 0) < 0)
    throw Error(ExitCode::io, file_.string() + ": cannot be written: " + std::strerror(errno),
                errno == ENOSPC || errno == EDQUOT ? "IO_NO_SPACE" : "");
  if (beats_) ::fdatasync(fd_);  // other machines see what has reached the server
}

void RunLock::give_signs() {
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, options_.beat, [this] { return stopped_; })) {
    // Who deletes or moves the folder is not raced with: it is made again by the next save, not by this thread.
    if (type_of(file_) == fs::file_type::not_found) continue;
    try {
      look();
      ++beat_;
      write_text();
    } catch (const Error& error) {
      if (error.exit_code() == ExitCode::locked) return;  // the next save finds out, too, and says so
    }
  }
}

void RunLock::require_mine() {
  const std::lock_guard lock(mutex_);
  look();
}

bool RunLock::is_mine() {
  const std::lock_guard lock(mutex_);
  try {
    return beats_ ? read_holder(file_).token == token_ : is_named();
  } catch (const Error&) {
    return false;
  }
}

void RunLock::look() {
  // The numbers of files may change on a network file system; there the text tells.
  if (!beats_ && is_named()) return;
  const bool mine = read_holder(file_).token == token_;
  if (mine && beats_) return;
  if (!mine && type_of(file_) != fs::file_type::not_found) lost();
  take_anew(mine);
}

/// Whether the name still leads to the file that is locked.
bool RunLock::is_named() const {
  struct stat locked {};
  struct stat named {};
  if (::fstat(fd_, &locked) != 0) throw Error(ExitCode::io, file_.string() + ": " + std::strerror(errno));
  if (::lstat(file_.c_str(), &named) == 0) return locked.st_dev == named.st_dev && locked.st_ino == named.st_ino;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  throw Error(ExitCode::io, file_.string() + ": " + std::strerror(errno));
}

/// `copied`: a file with the text of this run is there, as after a copy of the folder that took its name.
void RunLock::take_anew(bool copied) {
  make_folders(file_.parent_path());
  const int fd = open_lock(file_, copied ? 0 : O_CREAT | O_EXCL);
  if (fd < 0 && (errno == EEXIST || errno == ENOENT || errno == ELOOP)) lost();  // another came first
  if (fd < 0) throw Error(ExitCode::io, file_.string() + ": cannot be opened: " + std::strerror(errno));
  if (!try_lock(fd) && !knows_no_locks()) {
    ::close(fd);
    lost();
  }
  moved_.push_back(std::exchange(fd_, fd));
  try {
    write_text();
  } catch (...) {  // an empty file there would look like another run's
    ::close(std::exchange(fd_, moved_.back()));
    moved_.pop_back();
    if (!copied) ::unlink(file_.c_str());
    throw;
  }
  log_warning(file_.parent_path().string() +
              ": was moved or deleted while this run goes on; it is made again, and what the run saves lies there");
}

void RunLock::lost() const {
  const std::string about = read_holder(file_).about;
  const auto seconds = kPatience * std::chrono::ceil<std::chrono::seconds>(options_.beat).count();
  throw Error(ExitCode::locked,
              file_.parent_path().string() + ": another run took this folder over (" +
                  (about.empty() ? "unknown" : about) + "), since " +
                  (beats_ ? "no sign of life of this one was seen for " + std::to_string(seconds) + " s"
                          : std::string("it was moved or deleted while this one goes on")) +
                  "; nothing more is saved here",
              "RUN_LOCK_LOST");
}

std::optional<std::string> RunLock::holder(const fs::path& run_folder) {
  const fs::path file = run_folder / ".lock";
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  if (fd < 0) return {};
  const bool held = ::flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  if (!held) return {};
  const std::string about = read_holder(file).about;
  return about.empty() ? "unknown" : about;
}

RunLock::~RunLock() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  stop_.notify_all();
  if (thread_.joinable()) thread_.join();
  try {
    // Ended by itself: nobody needs to wait for a sign of life.
    if (read_holder(file_).token == token_) static_cast<void>(::ftruncate(fd_, 0));
  } catch (const Error&) {  // the next run waits
  }
  ::close(fd_);
  for (const int fd : moved_) ::close(fd);
}

}  // namespace trainer::checkpoint
