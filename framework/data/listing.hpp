/// @file The files of one [[data]] section with their captions, before any picture is opened (internal to the scan).
#pragma once

#include <recipe/recipe.hpp>

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace trainer::data {

/// What is wrong with a dataset, gathered so that all of it is reported at once.
struct Problems {
  struct BadFile {
    std::string name, reason;
  };
  std::vector<std::string> sources;           ///< sentences about whole sources
  static constexpr std::size_t kKept = 1000;  ///< of files: metadata may hold a million bad rows
  std::vector<BadFile> files;
  std::size_t more = 0;  ///< files that were bad, too, but are not kept
  bool captions_missing = false;

  void add(std::string name, std::string reason) {
    if (files.size() < kKept)
      files.push_back({std::move(name), std::move(reason)});
    else
      ++more;
  }
  [[nodiscard]] bool empty() const { return sources.empty() && files.empty(); }
};

struct Found {
  std::filesystem::path file;
  std::string caption;  ///< clean, without the trigger
  std::size_t source = 0;
};

/// Whether `file`, all links followed, lies in `root`, which is canonical.
bool lies_in(const std::filesystem::path& file, const std::filesystem::path& root);

/// Pictures of a section whose caption is in order, sorted; the others and what looks like a picture but is not read
/// go to `problems`. `number` is the section's index. Throws Error (not_found, io).
std::vector<Found> list_source(const recipe::Data& source, std::size_t number, Problems& problems,
                               std::vector<std::string>& notes);

}  // namespace trainer::data
