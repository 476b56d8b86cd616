#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <base/entries.hpp>
#include <base/files.hpp>
#include <base/hash.hpp>
#include <base/log.hpp>
#include <base/units.hpp>
#include <checkpoint/recovery.hpp>
#include <checkpoint/store.hpp>
#include <trainer/sdk/error.hpp>
#include <weights/convert.hpp>
#include <weights/tensor_file.hpp>
#include <weights/write.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace trainer::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kStateLimit = std::size_t{64} << 20;

void require_finite(const NamedTensors& tensors, int64_t step) {
  for (const auto& [name, tensor] : tensors)
    if (!weights::all_finite(tensor))
      throw Error(ExitCode::non_finite, "\"" + name + "\" holds NaN or infinity after step " + std::to_string(step) +
                                            "; the state is not saved, earlier checkpoints stay");
}

/// Room for the bytes that are certain to be written; the rest of the file system's needs shows when writing. Told at
/// once it costs no half-written gigabytes. A file system that cannot say goes on.
void require_room(const fs::path& folder, const Content& content) {
  uint64_t need = content.state.size();
  for (const auto& [name, tensor] : content.tensors) need += static_cast<uint64_t>(tensor.nbytes());
  std::error_code unknown;
  const fs::space_info space = fs::space(folder, unknown);
  if (unknown || space.available >= need) return;
  throw Error(ExitCode::io,
              folder.string() + ": a checkpoint needs " + format_bytes(static_cast<double>(need)) + ", " +
                  format_bytes(static_cast<double>(space.available)) + " are free; free some space",
              "IO_NO_SPACE");
}

/// Refuses to replace: two runs never write one checkpoint.
void rename_new(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return;
  const int number = errno;
  if ((number == ENOSYS || number == EINVAL) && !fs::exists(to) && std::rename(from.c_str(), to.c_str()) == 0) return;
  throw Error(ExitCode::io, "cannot rename " + from.string() + " to " + to.string() + ": " + std::strerror(number));
}

void move(const fs::path& from, const fs::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0)
    throw Error(ExitCode::io, "cannot rename " + from.string() + " to " + to.string() + ": " + std::strerror(errno));
}

/// Whether a checkpoint is whole to the last byte.
bool reads_back(const fs::path& folder) {
  try {
    verify_folder(folder);
    return true;
  } catch (const Error&) {
    return false;
  }
}

fs::path trash_of(const fs::path& folder) { return folder.parent_path() / (".trash-" + folder.filename().string()); }

/// A deletion that a crash cannot turn into half a checkpoint: out of sight first.
void discard(const fs::path& folder) {
  const fs::path trash = trash_of(folder);
  std::error_code ignored;
  fs::remove_all(trash, ignored);
  move(folder, trash);
  sync_folder(folder.parent_path());
  fs::remove_all(trash, ignored);
}

}  // namespace

Store::Store(const fs::path& run_folder, std::string run_id, std::function<void()> may_commit)
    : root_(run_folder / "ckpt"), run_id_(std::move(run_id)), may_commit_(std::move(may_commit)) {
  make_folders(root_);
  // Also of what is there, checkpoints too: who made it may have been killed before the disk had its name.
  for (const fs::path& folder : {run_folder, root_}) sync_name_of(folder);
  sync_folder(root_);
  std::error_code ignored;
  for (const std::string& name : names_in(root_))
    if (name.starts_with(".tmp-") || name.starts_with(".trash-")) fs::remove_all(root_ / name, ignored);
}

fs::path Store::folder_of(int64_t step) const { return root_ / step_name(step); }

fs::path Store::save(int64_t step, const Content& content, std::map<std::string, std::string> fingerprints) {
  const fs::path target = folder_of(step);
  if (may_commit_) may_commit_();
  if (in_doubt_.contains(step)) withdraw(step);
  if (type_of(target) != fs::file_type::not_found && is_kept(step)) return target;
  require_finite(content.tensors, step);
  require_room(root_, content);
  const fs::path temp = root_ / (".tmp-" + std::to_string(step) + "-" + run_id_ + "-" + std::to_string(++attempts_));
  try {
    make_folders(temp);
    const std::vector<std::pair<std::string, at::Tensor>> tensors(content.tensors.begin(), content.tensors.end());
    const auto written = weights::write_safetensors(temp / kTensorsName, tensors, {}, {.xxh128 = true});
    write_file_atomically(temp / kStateName, content.state);
    Manifest manifest{step, run_id_, {}, std::move(fingerprints)};
    manifest.files = {{kTensorsName, written.bytes, written.xxh128},
                      {kStateName, content.state.size(), xxh128(content.state)}};
    for (const FileRecord& record : manifest.files)
      if (size_of(temp / record.name) != record.bytes)
        throw Error(ExitCode::io, (temp / record.name).string() + ": has another size than was written");
    write_file_atomically(temp / kManifestName, manifest_text(manifest));  // syncs the folder after it
    if (may_commit_) may_commit_();
    rename_new(temp, target);
    in_doubt_.insert(step);
    sync_folder(root_);  // the commit point
    in_doubt_.erase(step);
    known_.insert(step);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temp, ignored);
    try {
      if (in_doubt_.contains(step)) withdraw(step);
    } catch (const Error&) {  // before the next attempt
    }
    throw;
  }
  return target;
}

/// Whether what is there under the step's name is this run's and whole; else it is there no more.
bool Store::is_kept(int64_t step) const {
  const fs::path folder = folder_of(step);
  if (known_.contains(step) && looks_whole(folder)) return true;
  std::string code = "CKPT_RUN", why = folder.string() + ": written by another run";
  try {
    if (verify_folder(folder).run_id == run_id_) return true;
  } catch (const Error& error) {
    if (error.exit_code() == ExitCode::io) throw;  // not known
    code = error.code();
    why = error.what();
  }
  log_warning(why + "; set aside as " + set_aside(folder, code));
  sync_folder(root_);
  return false;
}

void Store::withdraw(int64_t step) {
  const fs::path folder = folder_of(step);
  std::error_code ignored;
  if (type_of(folder) != fs::file_type::not_found)
    discard(folder);
  else
    fs::remove_all(trash_of(folder), ignored);
  in_doubt_.erase(step);
}

std::vector<int64_t> Store::steps() const { return steps_in(root_); }

void Store::rotate(const Keep& keep) {
  if (keep.newest <= 0) return;
  if (may_commit_) may_commit_();
  std::vector<int64_t> all = steps();
  // One that is damaged protects nothing, so it does not count.
  for (int64_t whole = 0; !all.empty() && whole < keep.newest; all.pop_back())
    if (keep.newest == 1 ? reads_back(folder_of(all.back())) : looks_whole(folder_of(all.back()))) ++whole;
  for (const int64_t step : all) {
    const bool regular = keep.every > 0 && step % keep.every == 0;
    if (!regular && !fs::exists(fs::symlink_status(folder_of(step) / kPinName))) discard(folder_of(step));
  }
}

std::optional<Loaded> Store::newest(std::vector<std::string>& notes) {
  std::optional<Loaded> loaded;
  newest_whole(
      root_, [&](const fs::path& folder) { loaded = load(folder); }, notes);
  if (loaded) known_.insert(loaded->manifest.step);
  return loaded;
}

Loaded load(const fs::path& folder) {
  Loaded loaded;
  loaded.folder = folder;
  loaded.manifest = verify_folder(folder);
  loaded.content.state = read_file(folder / kStateName, kStateLimit, "checkpoint state");
  const weights::TensorFile file(folder / kTensorsName, {weights::Profile::strict, weights::ReadMode::copy});
  for (const std::string& name : file.names()) loaded.content.tensors[name] = file.read(name);
  return loaded;
}

}  // namespace trainer::checkpoint
