#include <data/source.hpp>

#include <base/hash.hpp>
#include <base/heartbeat.hpp>
#include <base/printable.hpp>
#include <data/caption.hpp>
#include <data/image.hpp>
#include <data/listing.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <iterator>
#include <string_view>

namespace trainer::data {
namespace {

constexpr int64_t kMinSide = 16;  // below this a picture is an icon, whatever its bucket
constexpr double kMuchEnlarged = 2.0;

/// Errors that are the file's own fault; others (no libvips, a defect) stop the scan at once.
bool about_the_file(const Error& error) {
  return error.exit_code() == ExitCode::bad_input || error.exit_code() == ExitCode::not_found ||
         error.exit_code() == ExitCode::io;
}

class Scan {
 public:
  Scan(std::span<const recipe::Data> sources, const ScanOptions& options) : sources_(sources), options_(options) {}

  Dataset run() {
    std::vector<BucketGrid> grids;
    std::vector<Found> found;
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      const recipe::Data& source = sources_[i];
      grids.emplace_back(BucketOptions{source.resolution, options_.multiple, source.max_aspect});
      std::vector<Found> more = list_source(source, i, problems_, dataset_.notes);
      std::move(more.begin(), more.end(), std::back_inserter(found));
    }
    left_out_.resize(sources_.size());
    enlarged_.resize(sources_.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      beat();
      examine(found[i], grids[found[i].source]);
      if (options_.progress) options_.progress(i + 1, found.size());
    }
    if (!problems_.empty()) verify_the_rest();
    if (!problems_.empty()) report();
    add_notes();
    for (std::string& note : dataset_.notes) note = printable(note);
    if (dataset_.samples.empty())
      throw Error(ExitCode::bad_input, "no picture is left to train on:\n" + notes(), "DATASET");
    return std::move(dataset_);
  }

 private:
  void examine(Found& found, const BucketGrid& grid) {
    const recipe::Data& source = sources_[found.source];
    try {
      const std::string bytes = read_image_file(found.file);
      const ImageHeader header = read_image_header(std::string_view(bytes));
      if (std::min(header.width, header.height) < kMinSide) {
        throw Error(ExitCode::bad_input, "too small: " + size_text(header) + " pixels, at least 16 x 16 are needed");
      }
      if (options_.verify_pixels) verify_image(bytes);
      const Bucket bucket = grid.assign(header.width, header.height);
      const double scale = cover_scale(header.width, header.height, bucket);
      if (scale > 1 && !source.upscale) return left_out_[found.source].push_back(found.file.filename().string());
      if (scale > kMuchEnlarged) ++enlarged_[found.source];
      dataset_.samples.push_back({found.file, with_trigger(clean_caption(source.trigger), found.caption), xxh128(bytes),
                                  header.width, header.height, bucket, source.repeats, found.source});
    } catch (const Error& error) {
      if (!about_the_file(error)) throw;
      problems_.add(found.file.string(), error.what());
    }
  }

  static std::string size_text(const ImageHeader& header) {
    return std::to_string(header.width) + " x " + std::to_string(header.height);
  }

  /// Something must be mended anyway: find everything that must be, so that it is done once.
  void verify_the_rest() {
    if (options_.verify_pixels) return;
    for (const Sample& sample : dataset_.samples) {
      beat();
      try {
        verify_image(read_image_file(sample.file));
      } catch (const Error& error) {
        if (!about_the_file(error)) throw;
        problems_.add(sample.file.string(), error.what());
      }
    }
  }

  [[noreturn]] void report() {
    std::stable_sort(problems_.files.begin(), problems_.files.end(),
                     [](const auto& a, const auto& b) { return a.name < b.name; });
    std::string text;
    for (const std::string& source : problems_.sources) text += printable(source) + "\n";
    if (!problems_.files.empty()) {
      const std::size_t count = problems_.files.size() + problems_.more;
      text += std::to_string(count) + (count == 1 ? " file cannot be used:\n" : " files cannot be used:\n");
      for (const auto& [name, reason] : problems_.files)
        text += "  " + printable(name) + ": " + printable(reason) + "\n";
      if (problems_.more > 0) text += "  ... and " + std::to_string(problems_.more) + " more\n";
    }
    text += problems_.captions_missing
                ? "Add the missing captions, or give the source one caption for all pictures: caption = \"...\""
                : "Mend or remove what is named here.";
    throw Error(ExitCode::bad_input, text, "DATASET");
  }

  void add_notes() {
    std::size_t empty = 0;
    for (const Sample& sample : dataset_.samples) empty += sample.caption.empty() ? 1 : 0;
    if (empty > 0)
      dataset_.notes.push_back(std::to_string(empty) + (empty == 1 ? " picture has" : " pictures have") +
                               " an empty caption and will be trained without text");
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      if (enlarged_[i] > 0) {
        dataset_.notes.push_back(std::to_string(enlarged_[i]) + " pictures of " + sources_[i].folder +
                                 " are enlarged more than twofold; a smaller resolution would suit them");
      }
      if (left_out_[i].empty()) continue;
      std::string names;
      for (const std::string& name : left_out_[i]) names += (names.empty() ? "" : ", ") + name;
      dataset_.notes.push_back(std::to_string(left_out_[i].size()) + " pictures of " + sources_[i].folder +
                               " are smaller than their bucket and left out (upscale = false): " + names);
    }
  }

  std::string notes() const {
    std::string text;
    for (const std::string& note : dataset_.notes) text += (text.empty() ? "" : "\n") + note;
    return text;
  }

  std::span<const recipe::Data> sources_;
  const ScanOptions& options_;
  Dataset dataset_;
  Problems problems_;
  std::vector<std::vector<std::string>> left_out_;  // names, by source
  std::vector<std::size_t> enlarged_;               // counts, by source
};

}  // namespace

Dataset scan(std::span<const recipe::Data> sources, const ScanOptions& options) { return Scan(sources, options).run(); }

}  // namespace trainer::data
