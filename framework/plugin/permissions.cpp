#include <plugin/permissions.hpp>

#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace trainer::plugin {
namespace {

namespace fs = std::filesystem;

/// Who owns this program can do with it what they like already, as with a tree that is mounted into a container.
uid_t owner_of_program() {
  struct stat status {};
  return ::stat("/proc/self/exe", &status) == 0 ? status.st_uid : ::geteuid();
}

std::string user_name(uid_t user) {
  passwd entry{}, *found = nullptr;
  std::array<char, 4096> text{};
  const bool known = ::getpwuid_r(user, &entry, text.data(), text.size(), &found) == 0 && found != nullptr;
  return known ? found->pw_name : "user " + std::to_string(user);
}

/// Named as the user and without members: some systems give each user one and let it write.
bool private_group(gid_t id, uid_t user) {
  group entry{}, *found = nullptr;
  std::array<char, 65536> text{};
  if (::getgrgid_r(id, &entry, text.data(), text.size(), &found) != 0 || found == nullptr) return false;
  const std::string owner = user_name(user);
  for (char** member = found->gr_mem; *member != nullptr; ++member)
    if (owner != *member) return false;
  return owner == found->gr_name;
}

/// Who can change a folder above the program can change the program: nothing is gained by looking further.
bool holds(const fs::path& folder, const fs::path& file) {
  const auto [end, rest] = std::mismatch(folder.begin(), folder.end(), file.begin(), file.end());
  return end == folder.end();
}

}  // namespace

std::string writable_by_others(const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return {};  // opening it says why
  const uid_t owner = status.st_uid;
  if (owner != 0 && owner != ::geteuid() && owner != owner_of_program()) return "belongs to " + user_name(owner);
  if (S_ISLNK(status.st_mode)) return {};  // its own mode says nothing
  if (S_ISDIR(status.st_mode) && (status.st_mode & S_ISVTX) != 0) return {};
  if ((status.st_mode & S_IWOTH) != 0) return "can be written to by everyone";
  if ((status.st_mode & S_IWGRP) != 0 && status.st_gid != 0 && !private_group(status.st_gid, owner))
    return "can be written to by its group";
  return {};
}

void require_safe_permissions(const std::string& plugin, const fs::path& library) {
  const char* chosen = std::getenv("TRAINER_PLUGIN_PERM");
  if (chosen != nullptr && std::string_view(chosen) == "ignore") return;
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed);
  const fs::path real = fs::canonical(library, failed);
  for (const fs::path& start : {fs::absolute(library).lexically_normal(), failed ? library : real})
    for (fs::path at = start; !at.empty() && !holds(at, program); at = at.parent_path()) {
      if (const std::string why = writable_by_others(at); !why.empty())
        throw Error(ExitCode::plugin_rejected,
                    "plugin \"" + plugin + "\", permissions: " + at.string() + " " + why +
                        ", so others could have put code there that would run with your rights. Take that away (chmod "
                        "go-w, chown), or set TRAINER_PLUGIN_PERM=ignore if you trust them",
                    "PLUGIN_PERM");
      if (at == at.parent_path()) break;
    }
}

}  // namespace trainer::plugin
