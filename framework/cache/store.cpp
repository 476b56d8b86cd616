#include <cache/store.hpp>

#include <sys/stat.h>
#include <base/entries.hpp>
#include <base/files.hpp>
#include <base/unfinished.hpp>
#include <cache/entry.hpp>
#include <trainer/sdk/error.hpp>
#include <weights/convert.hpp>
#include <weights/tensor_file.hpp>
#include <weights/write.hpp>

#include <map>
#include <system_error>
#include <utility>
#include <vector>

namespace trainer::cache {
namespace {

constexpr int kDepthOfEntries = 2;  // folders above an entry: KIND/XX

/// Tensors: contiguous, on the CPU.
std::string checksum(const NamedTensors& tensors) {
  std::map<std::string, std::string_view> bytes;
  for (const auto& [name, tensor] : tensors)
    bytes[name] = std::string_view(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  return entry_checksum(bytes);
}

/// The entry's file with its header verified.
weights::TensorFile open_entry(const std::filesystem::path& path, std::string_view kind, const std::string& key) {
  weights::TensorFile file(path, {.mode = weights::ReadMode::copy});
  require_entry(file.header(), path, kind, key);
  return file;
}

NamedTensors read_entry(const weights::TensorFile& file) {
  NamedTensors tensors;
  for (const std::string& name : file.names()) {
    tensors[name] = file.read(name);
    if (!weights::all_finite(tensors[name]))
      throw Error(ExitCode::bad_input,
                  "cache entry " + file.path().string() + ": tensor \"" + name + "\" holds NaN or infinity",
                  "CACHE_ENTRY");
  }
  require_checksum(file.header(), file.path(), checksum(tensors));
  return tensors;
}

}  // namespace

std::filesystem::path Store::file(std::string_view kind, const std::string& key) const {
  return folder_ / kind / key.substr(0, 2) / (key + ".safetensors");
}

void Store::remove_unfinished(std::chrono::hours age) const {
  namespace fs = std::filesystem;
  const auto since = fs::file_time_type::clock::now() - age;
  std::error_code failed, ignored;
  constexpr auto kSkip = fs::directory_options::skip_permission_denied;
  for (fs::recursive_directory_iterator it(folder_, kSkip, failed); !failed && it != fs::recursive_directory_iterator();
       it.increment(failed)) {
    if (it.depth() >= kDepthOfEntries) it.disable_recursion_pending();
    const std::string name = it->path().filename().string();
    std::error_code unknown;
    const bool file = fs::is_regular_file(it->symlink_status(unknown)) && !unknown;
    if (!file || !is_unfinished(name) || name.find(".safetensors.tmp-") == name.npos) continue;
    if (const auto changed = it->last_write_time(unknown); !unknown && changed < since) fs::remove(it->path(), ignored);
  }
}

Store::State Store::check(std::string_view kind, const std::string& key, bool whole) const {
  try {
    const weights::TensorFile entry = open_entry(file(kind, key), kind, key);
    if (whole) read_entry(entry);
    return {State::Kind::present, {}, entry.file().size()};
  } catch (const Error& error) {
    if (error.exit_code() == ExitCode::not_found) return {State::Kind::absent, {}, 0};
    if (error.exit_code() == ExitCode::bad_input) return {State::Kind::damaged, error.what(), 0};
    throw;
  }
}

NamedTensors Store::load(std::string_view kind, const std::string& key) const {
  try {
    return read_entry(open_entry(file(kind, key), kind, key));
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::bad_input) throw;
    throw Error(ExitCode::bad_input, std::string(error.what()) + "; remove the file, it is then made again",
                error.code());
  }
}

void Store::save(std::string_view kind, const std::string& key, const NamedTensors& tensors,
                 const std::string& about) const {
  Saver saver(*this);
  saver.save(kind, key, tensors, about);
  saver.commit();
}

/// Its own name becomes durable with the commit, that of the folder above it at once. Who made one may have been killed
/// before it was.
void Saver::make_folder(const std::filesystem::path& folder) {
  const std::filesystem::path above = folder.parent_path();
  if (!named_.contains(above)) {
    make_folders(above);
    sync_name_of(above);
    named_.insert(above);
  }
  above_.insert(above);
  if (::mkdir(folder.c_str(), 0777) != 0) make_folders(folder);  // says why, if it is not there
}

void Saver::save(std::string_view kind, const std::string& key, const NamedTensors& tensors, const std::string& about) {
  NamedTensors plain;
  for (const auto& [name, tensor] : tensors) {
    plain[name] = tensor.detach().cpu().contiguous();
    if (weights::all_finite(plain[name])) continue;
    throw Error(ExitCode::non_finite, about + ": tensor \"" + name + "\" holds NaN or infinity and is not cached",
                "CACHE_NONFINITE");
  }
  const std::filesystem::path path = store_.file(kind, key);
  if (const auto type = type_of(path);
      type != std::filesystem::file_type::not_found && type != std::filesystem::file_type::regular)
    throw Error(ExitCode::io, "cache entry " + path.string() +
                                  ": a folder, pipe or device has that name; delete it, and "
                                  "the entry is made again");
  make_folder(path.parent_path());
  if (files_.empty()) since_ = std::chrono::steady_clock::now();
  files_.push_back(weights::stage_safetensors(path, {plain.begin(), plain.end()},
                                              entry_metadata(kind, key, about, checksum(plain))));
  bytes_ += files_.back()->written();
  if (files_.size() >= kEntries || bytes_ >= kBytes || std::chrono::steady_clock::now() - since_ >= kDelay) commit();
}

void Saver::commit() {
  const auto files = std::exchange(files_, {});  // after a failed sync no second attempt may be believed
  const auto above = std::exchange(above_, {});
  bytes_ = 0;
  weights::AtomicFile::commit(files);
  for (const std::filesystem::path& folder : above) sync_folder(folder);
}

}  // namespace trainer::cache
