/// @file Names that are spelt alike: é is one character (NFC) as most systems write it, two (NFD) as older Macs and
/// some archives do, and a folder copied from there holds names that look the same and are not. Names are compared by
/// NFC.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace trainer::data {

/// `text` in NFC; what is not UTF-8 as it is.
std::string composed(std::string_view text);

/// Finds files by names that are spelt alike. Folders are listed once.
class SpellingFinder {
 public:
  /// `path` where it exists, else with each part that is not there replaced by the one name of its folder that is spelt
  /// alike; `path` again where there is none or several.
  std::filesystem::path on_disk(const std::filesystem::path& path);

 private:
  /// Of each folder, by its composed name: the one that is there; empty for several.
  std::map<std::filesystem::path, std::map<std::string, std::string>> folders_;
};

}  // namespace trainer::data
