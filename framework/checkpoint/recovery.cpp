#include <base/entries.hpp>
#include <base/files.hpp>
#include <base/hash.hpp>
#include <checkpoint/recovery.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace trainer::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kManifestLimit = std::size_t{64} << 20, kStateLimit = std::size_t{64} << 20;
constexpr std::string_view kStepPrefix = "step-";
constexpr std::size_t kStepDigits = 10;
constexpr std::string_view kBad = ".bad";

/// The step of a folder name made by `step_name`, or nothing.
std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kStepPrefix) || name.size() != kStepPrefix.size() + kStepDigits) return {};
  if (name.find_first_not_of("0123456789", kStepPrefix.size()) != std::string::npos) return {};
  return std::stoll(name.substr(kStepPrefix.size()));
}

}  // namespace

std::string step_name(int64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "step-%010lld", static_cast<long long>(step));
  return text;
}

std::string set_aside(const fs::path& folder, const std::string& code) {
  const std::string bad = folder.string() + std::string(kBad) + (code.empty() ? "" : "-" + code);
  std::string to = bad;
  for (int n = 2; fs::exists(fs::symlink_status(to)); ++n) to = bad + "-" + std::to_string(n);
  if (std::rename(folder.c_str(), to.c_str()) != 0)
    throw Error(ExitCode::io, "cannot rename " + folder.string() + " to " + to + ": " + std::strerror(errno));
  return fs::path(to).filename().string();
}

std::vector<int64_t> steps_in(const fs::path& root) {
  std::vector<int64_t> steps;
  for (const std::string& name : names_in(root))
    if (const auto step = step_of(name); step && type_of(root / name) == fs::file_type::directory)
      steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

namespace {

/// The manifest of a checkpoint folder; its files are not looked at.
Manifest manifest_of(const fs::path& folder) {
  if (type_of(folder) != fs::file_type::directory)
    throw Error(ExitCode::not_found, folder.string() + ": no such checkpoint folder");
  const fs::path file = folder / kManifestName;
  if (type_of(file) == fs::file_type::not_found)
    throw Error(ExitCode::bad_input, folder.string() + ": has no " + kManifestName, "CKPT_MISSING");
  Manifest manifest = parse_manifest(read_file(file, kManifestLimit, "checkpoint manifest"), file.string());
  for (const char* needed : {kTensorsName, kStateName})
    if (std::none_of(manifest.files.begin(), manifest.files.end(),
                     [&](const FileRecord& record) { return record.name == needed; }))
      throw Error(ExitCode::bad_input, file.string() + ": does not list " + needed, "CKPT_MANIFEST");
  // Also of a folder that is given as "step-0000000250/" or "." .
  const fs::path plain = (fs::absolute(folder) / "").lexically_normal().parent_path();
  if (const auto step = step_of(plain.filename().string()); step && *step != manifest.step)
    throw Error(ExitCode::bad_input,
                folder.string() + ": holds the state after step " + std::to_string(manifest.step) +
                    "; rename it to what it holds, or delete it",
                "CKPT_STEP");
  return manifest;
}

}  // namespace

Manifest verify_folder(const fs::path& folder) {
  Manifest manifest = manifest_of(folder);
  verify_files(folder, manifest);
  return manifest;
}

std::optional<Manifest> whole_manifest(const fs::path& folder) {
  try {
    Manifest manifest = manifest_of(folder);
    const bool whole = std::all_of(manifest.files.begin(), manifest.files.end(), [&](const FileRecord& record) {
      return size_of(folder / record.name) == record.bytes;
    });
    return whole ? std::optional(std::move(manifest)) : std::nullopt;
  } catch (const Error& error) {
    if (error.exit_code() == ExitCode::io) throw;  // not known
    return {};
  }
}

bool looks_whole(const fs::path& folder) { return whole_manifest(folder).has_value(); }

std::optional<std::string> whole_state(const fs::path& folder) {
  const std::optional<Manifest> manifest = whole_manifest(folder);
  if (!manifest) return {};
  const auto record = std::find_if(manifest->files.begin(), manifest->files.end(),
                                   [](const FileRecord& one) { return one.name == kStateName; });
  if (record->bytes > kStateLimit) return {};
  std::string state = read_file(folder / kStateName, kStateLimit, "checkpoint state");
  return xxh128(state) == record->xxh128 ? std::optional(std::move(state)) : std::nullopt;
}

namespace {

/// Names of checkpoints that earlier starts set aside.
std::vector<std::string> set_aside_in(const fs::path& root) {
  std::vector<std::string> names = names_in(root);
  std::erase_if(names, [](const std::string& name) { return name.find(kBad) == std::string::npos; });
  std::sort(names.begin(), names.end());
  return names;
}

/// With why, in `notes` from `first` on; these move into the error.
[[noreturn]] void none_whole(const fs::path& root, const std::vector<std::string>& before,
                             std::vector<std::string>& notes, std::size_t first) {
  std::string text =
      root.string() +
      ": checkpoints exist, but none is whole. To start anew, choose another run.output, or --resume never, "
      "which trains over the results that are there";
  for (std::size_t i = first; i < notes.size(); ++i) text += "\n  " + notes[i];
  for (const std::string& name : before) text += "\n  " + name + " was set aside by an earlier start";
  notes.resize(first);
  throw Error(ExitCode::not_found, text);
}

}  // namespace

std::vector<fs::path> newest_first(const std::vector<fs::path>& roots) {
  std::vector<std::pair<int64_t, fs::path>> all;
  for (const fs::path& root : roots)
    for (const int64_t step : steps_in(root)) all.emplace_back(step, root / step_name(step));
  std::stable_sort(all.begin(), all.end(), [](const auto& one, const auto& two) { return one.first > two.first; });
  std::vector<fs::path> folders;
  for (auto& [step, folder] : all) folders.push_back(std::move(folder));
  return folders;
}

std::optional<Choice> foretell_newest(const std::vector<fs::path>& roots, std::vector<std::string>& notes) {
  const std::size_t first = notes.size();
  for (const fs::path& folder : newest_first(roots)) try {
      return Choice{folder, verify_folder(folder)};
    } catch (const Error& error) {
      if (error.exit_code() != ExitCode::bad_input) throw;
      notes.emplace_back(error.what());
    }
  for (const fs::path& root : roots)
    if (const auto before = set_aside_in(root); !before.empty() || !steps_in(root).empty())
      none_whole(root, before, notes, first);
  return {};
}

std::optional<fs::path> newest_whole(const fs::path& root, const std::function<void(const fs::path&)>& read,
                                     std::vector<std::string>& notes) {
  std::vector<int64_t> all = steps_in(root);
  const std::vector<std::string> before = set_aside_in(root);
  const std::size_t first = notes.size();
  const bool ever = !all.empty() || !before.empty();
  for (; !all.empty(); all.pop_back()) {
    const fs::path folder = root / step_name(all.back());
    try {
      read(folder);
      return folder;
    } catch (const Error& error) {
      if (error.exit_code() != ExitCode::bad_input) throw;
      notes.push_back(std::string(error.what()) + "; set aside as " + set_aside(folder, error.code()));
    }
  }
  if (ever) none_whole(root, before, notes, first);
  return {};
}

}  // namespace trainer::checkpoint
