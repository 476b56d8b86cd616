#include <data/listing.hpp>

#include <base/files.hpp>
#include <base/printable.hpp>
#include <data/caption.hpp>
#include <data/metadata.hpp>
#include <data/names.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>

namespace trainer::data {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 8> kRead = {".jpg", ".jpeg", ".png", ".webp", ".avif", ".heic", ".tif", ".tiff"};
constexpr std::array<std::string_view, 10> kOtherPictures = {".gif",  ".bmp", ".jxl", ".svg", ".psd",
                                                             ".heif", ".jp2", ".exr", ".dng", ".apng"};
constexpr std::array<std::string_view, 4> kSkippedFolders = {"__MACOSX", "_latent_cache", "_t_e_cache", "_controls"};

constexpr std::size_t kRepeatsShown = 100;  // lines that name a picture again

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

template <typename Names>
bool one_of(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool skipped_file(const fs::path& file) {
  const std::string stem = file.stem().string();
  return stem.starts_with('.') || stem.ends_with("-masklabel") || stem.ends_with("-condlabel");
}

class Lister {
 public:
  Lister(const recipe::Data& source, std::size_t number, Problems& problems, std::vector<std::string>& notes)
      : source_(source), number_(number), problems_(problems), notes_(notes) {
    std::error_code error;
    root_ = fs::canonical(source.folder, error);
    if (error) throw Error(ExitCode::not_found, "data folder " + source.folder + ": " + error.message());
    if (!fs::is_directory(root_)) throw Error(ExitCode::not_found, "data folder " + source.folder + " is a file");
  }

  std::vector<Found> list() {
    const std::optional<fs::path> metadata = metadata_file();
    if (metadata)
      from_metadata(*metadata);
    else
      from_folder();
    if (pictures_ == 0) {
      const bool hint = !metadata && !source_.recursive && has_subfolders_;
      problem_of_source(
          "no picture (" +
          std::string(metadata ? metadata->string() + " names none" : "jpg, jpeg, png, webp, avif, heic, tif, tiff") +
          ")" + (hint ? "; it has folders below it: set recursive = true to read them" : ""));
    } else if (missing_.size() == pictures_) {
      problem_of_source("none of its " + std::to_string(pictures_) + " pictures has a caption (" + wanted(metadata) +
                        ")");
    } else {
      for (const auto& [file, reason] : missing_) problem(file, reason);
    }
    problems_.captions_missing |= !missing_.empty();
    return std::move(found_);
  }

 private:
  void problem(const fs::path& file, const std::string& reason) { problems_.add(file.string(), reason); }
  void problem_of_source(const std::string& text) {
    problems_.sources.push_back("data folder " + source_.folder + ": " + text);
  }

  std::string wanted(const std::optional<fs::path>& metadata) const {
    if (metadata) return metadata->string() + " has no caption, prompt or text";
    std::string text = "looked for files of the same name ending in";
    for (const std::string& extension : source_.captions) text += " " + extension;
    return text;
  }

  /// The recipe's, or metadata.jsonl or metadata.csv in the folder, as Hugging Face's "imagefolder" has it.
  std::optional<fs::path> metadata_file() {
    if (!source_.metadata.empty()) return source_.metadata;
    for (const char* name : {"metadata.jsonl", "metadata.csv"}) {
      const fs::path file = fs::path(source_.folder) / name;
      std::error_code error;
      if (!fs::exists(fs::symlink_status(file, error))) continue;
      if (!lies_in(file, root_))
        throw Error(ExitCode::bad_input,
                    printable(file.string()) +
                        ": is a link to nothing or out of the data folder; name it in the recipe "
                        "(data.metadata) if it is meant",
                    "DATASET");
      notes_.push_back("pictures and captions of " + source_.folder + " are those that " + name + " names");
      return file;
    }
    return std::nullopt;
  }

  void add(const fs::path& file, const std::optional<std::string>& raw, const std::string& where,
           const std::string& missing) {
    ++pictures_;
    if (!source_.caption.empty()) return found_.push_back({file, clean_caption(source_.caption), number_});
    if (!raw) return static_cast<void>(missing_.emplace_back(file, missing));
    try {
      found_.push_back({file, clean_caption(*raw), number_});
    } catch (const Error& error) {
      problem(file, "caption " + where + " " + error.what());
    }
  }

  void from_folder() {
    std::vector<fs::path> files;
    walk(source_.folder, files, 0);
    std::map<std::string, fs::path> names;
    std::sort(files.begin(), files.end(),
              [](const fs::path& a, const fs::path& b) { return a.generic_string() < b.generic_string(); });
    for (const fs::path& file : files) {
      const fs::path name = file.parent_path() / file.stem();
      const auto [same, fresh] = names.try_emplace(lower(composed(name.string())), file);
      if (!fresh) note_alike(same->second, file);
      add_with_sidecar(file);
    }
  }

  void note_alike(const fs::path& one, const fs::path& other) {
    const std::string a = (one.parent_path() / one.stem()).string(), b = (other.parent_path() / other.stem()).string();
    const bool forms = a != b && composed(a) == composed(b);
    notes_.push_back(
        one.string() + " and " + other.string() +
        (forms ? " are one name in two Unicode forms (NFC, NFD): is one a copy of the other? Both are trained"
               : " differ in case or extension only"));
  }

  void walk(const fs::path& folder, std::vector<fs::path>& files, int depth) {
    if (depth > 64) throw Error(ExitCode::bad_input, "data folder " + folder.string() + ": more than 64 folders deep");
    std::error_code error;
    fs::directory_iterator entries(folder, error);
    if (error) throw Error(ExitCode::io, "cannot read data folder " + folder.string() + ": " + error.message());
    for (const fs::directory_entry& entry : entries) {
      const fs::path& path = entry.path();
      const std::string name = path.filename().string(), extension = lower(path.extension().string());
      if (entry.is_directory(error)) {
        if (name.starts_with('.') || one_of(kSkippedFolders, name)) continue;
        has_subfolders_ = true;
        if (!source_.recursive) continue;
        if (entry.is_symlink())
          notes_.push_back(path.string() + " is a link to a folder and was not followed");
        else
          walk(path, files, depth + 1);
      } else if (!skipped_file(path) && one_of(kOtherPictures, extension)) {
        problem(path, extension + " files are not read; convert it to jpeg, png, webp, avif or tiff");
      } else if (!skipped_file(path) && one_of(kRead, extension)) {
        files.push_back(path);
      }
    }
  }

  void add_with_sidecar(const fs::path& file) {
    if (!lies_in(file, root_)) return ++pictures_, problem(file, "is a link to nothing or out of the data folder");
    std::string missing = "no caption:";
    if (!source_.caption.empty()) return add(file, std::nullopt, "", "");
    for (const std::string& extension : source_.captions) {
      const fs::path sidecar = spellings_.on_disk(fs::path(file).replace_extension(extension));
      missing += (missing.ends_with(':') ? " " : " or ") + sidecar.filename().string();
      std::error_code error;
      if (!fs::exists(fs::symlink_status(sidecar, error))) continue;
      if (!lies_in(sidecar, root_)) {
        return ++pictures_,
               problem(file, "caption " + sidecar.string() + " is a link to nothing or out of the data folder");
      }
      try {
        return add(file, read_file(sidecar, kMaxCaptionBytes + 3, "caption"), sidecar.filename().string(), "");
      } catch (const Error& unreadable) {
        return ++pictures_, problem(file, unreadable.what());
      }
    }
    add(file, std::nullopt, "", missing + " is missing");
  }

  void from_metadata(const fs::path& metadata) {
    const fs::path home = metadata.has_parent_path() ? metadata.parent_path() : fs::path(".");
    std::error_code error;
    const fs::path home_root = fs::canonical(home, error);
    std::map<fs::path, std::size_t> lines;
    std::size_t again = 0;
    for (const MetadataRow& row : read_metadata(metadata)) {
      const fs::path line = metadata.string() + ":" + std::to_string(row.line);
      if (!row.problem.empty()) {
        ++pictures_;
        problem(line, row.problem);
        continue;
      }
      // Relative to the metadata file, or else to the folder.
      fs::path file = spellings_.on_disk(home / row.image);
      if (!fs::exists(file, error)) file = spellings_.on_disk(fs::path(source_.folder) / row.image);
      const bool there = fs::exists(file, error);
      if (there && (lies_in(file, home_root) || lies_in(file, root_))) {
        const auto [first, fresh] = lines.try_emplace(fs::canonical(file, error), row.line);
        if (!fresh && ++again <= kRepeatsShown)
          notes_.push_back(line.string() + ": " + row.image + " is named in line " + std::to_string(first->second) +
                           ", too; it is trained with each of the captions");
        add(file, row.caption, "in " + line.string(), "no caption in " + line.string());
      } else {
        ++pictures_;
        problem(line, "picture " + row.image + (there ? " lies outside the data folder" : " does not exist"));
      }
    }
    if (again > kRepeatsShown)
      notes_.push_back(metadata.string() + ": " + std::to_string(again - kRepeatsShown) +
                       " more lines name a picture that another line names, too");
  }

  const recipe::Data& source_;
  std::size_t number_;
  Problems& problems_;
  std::vector<std::string>& notes_;
  fs::path root_;
  std::size_t pictures_ = 0;  // seen, good or bad
  bool has_subfolders_ = false;
  SpellingFinder spellings_;
  std::vector<std::pair<fs::path, std::string>> missing_;
  std::vector<Found> found_;
};

}  // namespace

bool lies_in(const fs::path& file, const fs::path& root) {
  std::error_code error;
  const fs::path real = fs::canonical(file, error);
  return !error && std::mismatch(root.begin(), root.end(), real.begin(), real.end()).first == root.end();
}

std::vector<Found> list_source(const recipe::Data& source, std::size_t number, Problems& problems,
                               std::vector<std::string>& notes) {
  return Lister(source, number, problems, notes).list();
}

}  // namespace trainer::data
