#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <base/files.hpp>
#include <base/hash.hpp>
#include <base/units.hpp>
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

constexpr const char* kTensorsName = "rank-00000.safetensors";
constexpr const char* kStateName = "state.json";
constexpr std::size_t kStateLimit = std::size_t{64} << 20;
constexpr const char* kStepPrefix = "step-";
constexpr std::size_t kStepDigits = 10;

std::string step_name(int64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "step-%010lld", static_cast<long long>(step));
  return text;
}

/// The step of a folder name made by `step_name`, or nothing.
std::optional<int64_t> step_of(const std::string& name) {
  const std::size_t prefix = std::strlen(kStepPrefix);
  if (!name.starts_with(kStepPrefix) || name.size() != prefix + kStepDigits) return {};
  if (!std::all_of(name.begin() + static_cast<std::ptrdiff_t>(prefix), name.end(),
                   [](char c) { return c >= '0' && c <= '9'; }))
    return {};
  return std::stoll(name.substr(prefix));
}

void require_finite(const NamedTensors& tensors, int64_t step) {
  for (const auto& [name, tensor] : tensors)
    if (tensor.is_floating_point() && !weights::all_finite(tensor))
      throw Error(ExitCode::non_finite, "\"" + name + "\" holds NaN or infinity after step " + std::to_string(step) +
                                            "; the state is not saved, earlier checkpoints stay");
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

/// A deletion that a crash cannot turn into half a checkpoint: out of sight first.
void discard(const fs::path& folder) {
  const fs::path trash = folder.parent_path() / (".trash-" + folder.filename().string());
  std::error_code ignored;
  fs::remove_all(trash, ignored);
  move(folder, trash);
  sync_folder(folder.parent_path());
  fs::remove_all(trash, ignored);
}

}  // namespace

Store::Store(const fs::path& run_folder, std::string run_id) : root_(run_folder / "ckpt"), run_id_(std::move(run_id)) {
  make_folders(root_);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root_)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".tmp-") || name.starts_with(".trash-")) fs::remove_all(entry.path(), ignored);
  }
}

fs::path Store::folder_of(int64_t step) const { return root_ / step_name(step); }

fs::path Store::save(int64_t step, const Content& content, std::map<std::string, std::string> fingerprints) {
  const fs::path target = folder_of(step);
  if (fs::exists(target)) return target;
  require_finite(content.tensors, step);
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
      if (fs::file_size(temp / record.name) != record.bytes)
        throw Error(ExitCode::io, (temp / record.name).string() + ": has another size than was written");
    write_file_atomically(temp / kManifestName, manifest_text(manifest));  // syncs the folder after it
    rename_new(temp, target);
    sync_folder(root_);  // the commit point
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temp, ignored);
    throw;
  }
  return target;
}

std::vector<int64_t> Store::steps() const {
  std::vector<int64_t> steps;
  for (const auto& entry : fs::directory_iterator(root_))
    if (const auto step = step_of(entry.path().filename().string()); step && entry.is_directory())
      steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

void Store::rotate(int64_t keep) {
  std::vector<int64_t> all = steps();
  if (keep <= 0) return;
  while (static_cast<int64_t>(all.size()) > keep) {
    discard(folder_of(all.front()));
    all.erase(all.begin());
  }
}

std::optional<Loaded> Store::newest(std::vector<std::string>& notes) {
  std::vector<int64_t> all = steps();
  bool damaged = false;
  for (const auto& entry : fs::directory_iterator(root_)) damaged = damaged || entry.path().extension() == ".bad";
  if (all.empty() && !damaged) return {};
  for (; !all.empty(); all.pop_back()) {
    const fs::path folder = folder_of(all.back());
    try {
      return load(folder);
    } catch (const Error& error) {
      if (error.exit_code() != ExitCode::bad_input) throw;
      fs::path aside = folder;
      for (int n = 0; fs::exists(aside += ".bad") && n < 100; ++n) aside = folder.string() + "-" + std::to_string(n);
      move(folder, aside);
      notes.push_back(std::string(error.what()) + "; set aside as " + aside.filename().string());
    }
  }
  throw Error(ExitCode::not_found,
              root_.string() +
                  ": checkpoints exist, but none is whole. Look at the messages above; to start anew, "
                  "choose another run.output or --resume never with an empty folder");
}

Loaded load(const fs::path& folder) {
  if (!fs::is_directory(folder)) throw Error(ExitCode::not_found, folder.string() + ": no such checkpoint folder");
  const fs::path manifest_file = folder / kManifestName;
  if (!fs::exists(manifest_file))
    throw Error(ExitCode::bad_input, folder.string() + ": has no " + kManifestName, "CKPT_MISSING");
  Loaded loaded;
  loaded.folder = folder;
  loaded.manifest =
      parse_manifest(read_file(manifest_file, kStateLimit, "checkpoint manifest"), manifest_file.string());
  for (const char* needed : {kTensorsName, kStateName})
    if (std::none_of(loaded.manifest.files.begin(), loaded.manifest.files.end(),
                     [&](const FileRecord& record) { return record.name == needed; }))
      throw Error(ExitCode::bad_input, manifest_file.string() + ": does not list " + needed, "CKPT_MANIFEST");
  verify_files(folder, loaded.manifest);
  loaded.content.state = read_file(folder / kStateName, kStateLimit, "checkpoint state");
  const weights::TensorFile file(folder / kTensorsName, {weights::Profile::strict, weights::ReadMode::copy});
  for (const std::string& name : file.names()) loaded.content.tensors[name] = file.read(name);
  return loaded;
}

}  // namespace trainer::checkpoint
