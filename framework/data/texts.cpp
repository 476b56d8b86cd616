#include <base/files.hpp>
#include <base/hash.hpp>
#include <base/printable.hpp>
#include <data/caption.hpp>
#include <data/listing.hpp>
#include <data/source.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <system_error>

namespace trainer::data {
namespace {

namespace fs = std::filesystem;

bool is_text(const recipe::Data& source, const fs::path& file) {
  const std::string name = file.filename().string();
  return !name.starts_with('.') && std::any_of(source.captions.begin(), source.captions.end(),
                                               [&](const std::string& ending) { return name.ends_with(ending); });
}

/// Text files of a folder; links to folders are not followed.
std::vector<fs::path> text_files(const recipe::Data& source) {
  std::error_code error;
  const fs::path root = fs::canonical(source.folder, error);
  if (!fs::is_directory(root))  // empty after an error
    throw Error(ExitCode::not_found, "data folder " + source.folder + ": " + (error ? error.message() : "is a file"));
  std::vector<fs::path> files;
  fs::recursive_directory_iterator entries(source.folder, error);
  for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    const bool skipped = !source.recursive || entries->path().filename().string().starts_with('.');
    if (entries->is_directory() && skipped) entries.disable_recursion_pending();
    if (entries->is_regular_file() && is_text(source, entries->path())) files.push_back(entries->path());
  }
  if (error) throw Error(ExitCode::io, "cannot read data folder " + source.folder + ": " + error.message());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

Dataset scan_texts(std::span<const recipe::Data> sources) {
  Dataset dataset;
  std::string problems;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const std::vector<fs::path> files = text_files(sources[i]);
    if (files.empty()) problems += "data folder " + sources[i].folder + ": no text (see data.captions)\n";
    const fs::path root = fs::canonical(sources[i].folder);
    for (const fs::path& file : files) {
      try {
        if (!lies_in(file, root)) throw Error(ExitCode::bad_input, "is a link out of the data folder");
        const std::string text = clean_caption(read_file(file, kMaxCaptionBytes + 3, "text"));
        if (text.empty()) throw Error(ExitCode::bad_input, "is empty");
        Sample sample;
        sample.file = file;
        sample.caption = with_trigger(clean_caption(sources[i].trigger), text);
        sample.content = xxh128(text);
        sample.repeats = sources[i].repeats;
        sample.source = i;
        dataset.samples.push_back(std::move(sample));
      } catch (const Error& error) {
        problems += "  " + printable(file.string()) + ": " + printable(error.what()) + "\n";
      }
    }
  }
  if (!problems.empty()) throw Error(ExitCode::bad_input, problems + "Mend or remove what is named here.", "DATASET");
  return dataset;
}

}  // namespace trainer::data
