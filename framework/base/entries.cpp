#include <base/entries.hpp>

#include <trainer/sdk/error.hpp>

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace trainer {
namespace {

namespace fs = std::filesystem;

Error cannot_look(const fs::path& path, const std::error_code& error) {
  const bool denied = error == std::errc::permission_denied || error == std::errc::operation_not_permitted;
  return {ExitCode::io, "cannot look at " + path.string() + ": " + error.message(), denied ? "IO_PERMISSION" : ""};
}

/// False: nothing is there.
bool look(const fs::path& path, struct stat& status) {
  if (::stat(path.c_str(), &status) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  throw cannot_look(path, std::error_code(errno, std::generic_category()));
}

}  // namespace

fs::file_type type_of(const fs::path& path) {
  struct stat status {};
  if (!look(path, status)) return fs::file_type::not_found;
  if (S_ISREG(status.st_mode)) return fs::file_type::regular;
  return S_ISDIR(status.st_mode) ? fs::file_type::directory : fs::file_type::unknown;
}

std::optional<uint64_t> size_of(const fs::path& file) {
  struct stat status {};
  if (!look(file, status) || !S_ISREG(status.st_mode)) return {};
  return static_cast<uint64_t>(status.st_size);
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  if (type_of(folder) != fs::file_type::directory) return names;
  std::error_code failed;
  for (fs::directory_iterator it(folder, failed), end; !failed && it != end; it.increment(failed))
    names.push_back(it->path().filename().string());
  if (failed) throw cannot_look(folder, failed);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace trainer
