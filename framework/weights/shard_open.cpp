// Opening files that an index names.
#include <fcntl.h>
#include <unistd.h>
#include <trainer/sdk/error.hpp>
#include <weights/shard_index.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace trainer::weights {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  explicit Folder(const fs::path& path) : fd_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (fd_ >= 0) return;
    const bool missing = errno == ENOENT || errno == ENOTDIR;
    throw Error(missing ? ExitCode::not_found : ExitCode::io,
                "cannot open folder " + path.string() + ": " + std::strerror(errno));
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { ::close(fd_); }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
};

bool inside(const fs::path& path, const fs::path& folder) {
  const auto [end, rest] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end == folder.end() && rest != path.end();
}

/// `models--X/blobs` for a folder `models--X/snapshots/REV` or one below it, else empty.
fs::path cache_blobs(const fs::path& folder) {
  fs::path at = folder;
  for (int level = 0; level < 4 && at.has_relative_path(); ++level, at = at.parent_path()) {
    if (at.parent_path().filename() == "snapshots") return at.parent_path().parent_path() / "blobs";
  }
  return {};
}

std::string link_help(const fs::path& file, const fs::path& target) {
  return file.string() + " is a symbolic link to " + target.string() +
         ", which is neither in the model folder nor in the blobs folder of its Hugging Face cache; copy the file, or "
         "name the real folder";
}

}  // namespace

MappedFile open_in_folder(const fs::path& folder, const std::string& name) {
  const Folder open_folder(folder);
  MappedFile file = MappedFile::open_at(open_folder.fd(), name, folder / name, false);
  if (file.is_open()) return file;

  std::error_code error;
  const fs::path home = fs::canonical(folder, error);
  const fs::path target = fs::canonical(home / name, error);
  if (error) {
    throw Error(ExitCode::not_found, (folder / name).string() + " is a symbolic link that leads nowhere (" +
                                         error.message() + "): fetch the model again");
  }
  const fs::path blobs = cache_blobs(home);
  if (!inside(target, home) && (blobs.empty() || !inside(target, blobs))) {
    throw Error(ExitCode::bad_input, link_help(folder / name, target), "IDX_SYMLINK");
  }
  MappedFile real = MappedFile::open_at(AT_FDCWD, target.string(), folder / name, false);
  // The resolved path holds no link; one that is there now was put there in between.
  if (!real.is_open()) throw Error(ExitCode::bad_input, link_help(folder / name, target), "IDX_SYMLINK");
  return real;
}

std::vector<MappedFile> open_shards(const ShardIndex& index, const fs::path& folder) {
  std::string missing;
  std::size_t count = 0;
  for (const std::string& shard : index.shards) {
    std::error_code error;
    if (fs::exists(folder / shard, error)) continue;
    if (++count <= 20) missing += (missing.empty() ? "" : ", ") + shard;
  }
  if (count > 0) {
    throw Error(ExitCode::not_found,
                index.file_name + ": " + std::to_string(count) + " of " + std::to_string(index.shards.size()) +
                    " shards are missing in " + folder.string() + ": " + missing + (count > 20 ? ", ..." : "") +
                    "; fetch them",
                "IDX_MISSING_SHARD");
  }
  std::vector<MappedFile> files;
  for (const std::string& shard : index.shards) {
    files.push_back(open_in_folder(folder, shard));
    for (std::size_t i = 0; i + 1 < files.size(); ++i) {
      if (!files[i].same_file(files.back())) continue;
      throw Error(ExitCode::bad_input,
                  index.file_name + ": shards " + index.shards[i] + " and " + shard +
                      " are one file; fetch "
                      "the folder again",
                  "IDX_LIMIT");
    }
  }
  return files;
}

}  // namespace trainer::weights
