#include <base/unfinished.hpp>

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <optional>
#include <system_error>

namespace trainer {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = ".tmp-";

std::optional<pid_t> number_in(std::string_view digits) {
  pid_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool whole = error == std::errc() && end == digits.data() + digits.size() && value >= 0;
  return whole ? std::optional(value) : std::nullopt;
}

/// The process of an unfinished file.
std::optional<pid_t> process_of(std::string_view name) {
  const std::size_t mark = name.rfind(kMark), dash = name.rfind('-');
  if (!name.starts_with('.') || mark == std::string_view::npos || mark < 2 || dash < mark + kMark.size()) return {};
  const std::string_view process = name.substr(mark + kMark.size(), dash - mark - kMark.size());
  return number_in(name.substr(dash + 1)) ? number_in(process) : std::nullopt;
}

bool is_file(const fs::directory_entry& entry) {
  std::error_code failed;
  return fs::is_regular_file(entry.symlink_status(failed)) && !failed;
}

bool is_alive(pid_t process) {
  return process != ::getpid() && process > 0 && (::kill(process, 0) == 0 || errno == EPERM);
}

}  // namespace

bool is_unfinished(std::string_view name) { return process_of(name).has_value(); }

void remove_unfinished(const fs::path& folder) {
  std::error_code failed, ignored;
  if (fs::is_symlink(fs::symlink_status(folder, ignored))) return;
  for (fs::directory_iterator it(folder, failed); !failed && it != fs::directory_iterator(); it.increment(failed)) {
    const std::optional<pid_t> process = process_of(it->path().filename().string());
    if (process && is_file(*it) && !is_alive(*process)) fs::remove(it->path(), ignored);
  }
}

}  // namespace trainer
