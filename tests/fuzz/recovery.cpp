// Bytes as a script that makes and damages checkpoints; the picker must choose as a model of a few lines does.
#include <base/hash.hpp>
#include <checkpoint/recovery.hpp>

#include <array>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "target.hpp"
#include "temp_file.hpp"

namespace {

using namespace trainer;
namespace fs = std::filesystem;

constexpr int kSteps = 5;
constexpr std::array kNames{checkpoint::kTensorsName, checkpoint::kStateName, checkpoint::kManifestName};

using Files = std::map<std::string, std::string>;

Files whole(int64_t step) {
  Files files{{checkpoint::kTensorsName, "tensors of " + std::to_string(step)},
              {checkpoint::kStateName, "{\"step\": " + std::to_string(step) + "}"}};
  checkpoint::Manifest manifest{step, "fuzz", {}, {{"torch", "2.11.0"}}};
  for (const auto& [name, text] : files) manifest.files.push_back({name, text.size(), xxh128(text)});
  files[checkpoint::kManifestName] = checkpoint::manifest_text(manifest);
  return files;
}

/// The run's folder in memory: what is on the disk after the script.
class Disk {
 public:
  explicit Disk(fs::path root) : root_(std::move(root)) {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }

  /// One operation of three bytes: what, which checkpoint and file, where.
  void apply(unsigned char what, unsigned char which, unsigned char where) {
    const int step = which % kSteps;
    const std::string name = kNames[which / kSteps % kNames.size()];
    switch (what % 10) {
      case 0:
        folders_[step] = whole(step);
        return;
      case 1:
        folders_.erase(step);
        return;
      case 2:
        with(step, [&](Files& files) { files.erase(name); });
        return;
      case 3:
        change(step, name, [&](std::string& text) { text.resize(where % (text.size() + 1)); });
        return;
      case 4:
        change(step, name, [&](std::string& text) { text += static_cast<char>(where); });
        return;
      case 5:
        change(step, name, [&](std::string& text) {
          if (!text.empty()) text[where % text.size()] ^= static_cast<char>(1 << (which % 8));
        });
        return;
      case 6:
        folders_[where % kSteps] = folders_[step];
        return;  // a copy under another step's name
      case 7:
        with(step, [&](Files& files) { files["stray-" + std::to_string(where % 3)] = "x"; });
        return;
      case 8:
        strange_ = where % 4;
        return;
      default:
        folders_[step];
        return;  // an empty folder, unless there is one
    }
  }

  void write() const {
    for (const auto& [step, files] : folders_) {
      const fs::path folder = root_ / checkpoint::step_name(step);
      fs::create_directory(folder);
      for (const auto& [name, text] : files) std::ofstream(folder / name, std::ios::binary) << text;
    }
    if (strange_ == 1) std::ofstream(root_ / checkpoint::step_name(77)) << "a file with the name of a checkpoint";
    if (strange_ == 2) fs::create_directory(root_ / "step-99");
    if (strange_ == 3) fs::create_directory(root_ / ".tmp-9-fuzz-1");
  }

  /// The newest step whose files are those that were saved.
  [[nodiscard]] int64_t newest() const {
    for (auto it = folders_.rbegin(); it != folders_.rend(); ++it) {
      bool same = true;
      for (const auto& [name, text] : whole(it->first)) {
        const auto found = it->second.find(name);
        same = same && found != it->second.end() && found->second == text;
      }
      if (same) return it->first;
    }
    return -1;
  }
  [[nodiscard]] bool empty() const { return folders_.empty(); }
  [[nodiscard]] const fs::path& root() const { return root_; }

 private:
  template <typename Work>
  void with(int step, const Work& work) {
    const auto folder = folders_.find(step);
    if (folder != folders_.end()) work(folder->second);
  }
  template <typename Work>
  void change(int step, const std::string& name, const Work& work) {
    with(step, [&](Files& files) {
      const auto file = files.find(name);
      if (file != files.end()) work(file->second);
    });
  }
  fs::path root_;
  std::map<int64_t, Files> folders_;
  int strange_ = 0;
};

void play(std::string_view script) {
  static const fuzz::TempFolder folder;
  Disk disk(folder.path() / "ckpt");
  for (std::size_t i = 0; i + 3 <= script.size() && i < 3 * 40; i += 3)
    disk.apply(static_cast<unsigned char>(script[i]), static_cast<unsigned char>(script[i + 1]),
               static_cast<unsigned char>(script[i + 2]));
  disk.write();
  const int64_t expected = disk.newest();
  for (int start = 0; start < 2; ++start) {  // the second start finds what the first left
    std::vector<std::string> notes;
    std::optional<fs::path> found;
    try {
      found = checkpoint::newest_whole(
          disk.root(), [](const fs::path& at) { checkpoint::verify_folder(at); }, notes);
      fuzz::require(found ? expected >= 0 : disk.empty(), "a run starts anew only where no checkpoint ever was");
    } catch (const Error& error) {
      fuzz::require(error.exit_code() == ExitCode::not_found && expected < 0 && !disk.empty(),
                    "only a run without a whole checkpoint ends");
    }
    if (expected >= 0)
      fuzz::require(found && found->filename() == checkpoint::step_name(expected), "the newest whole one is taken");
    fuzz::require(start == 0 || notes.empty(), "what is damaged is set aside once");
  }
}

}  // namespace
TRAINER_FUZZ_TARGET("recovery", play);
