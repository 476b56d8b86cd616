/// @file A plugin folder made by a test: manifests with chosen faults beside copies of the case libraries.
#pragma once

#include <gtest/gtest.h>
#include <plugin/loader.hpp>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace trainer::plugin {

/// Manifest keys by name; "option" is appended as it is.
using Keys = std::map<std::string, std::string>;

/// A fresh temporary folder, removed at the end.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Copies case_<name>.so from the build and writes <name>.plugin.toml, right but for `changes` (an empty value leaves
  /// the key out).
  std::filesystem::path add(const std::string& name, const Keys& changes = {});
  /// Only the manifest.
  std::filesystem::path add_manifest(const std::string& name, const Keys& changes = {});
  std::filesystem::path add_file(const std::string& name, const std::string& content);
  [[nodiscard]] Loader loader() const { return Loader({{path_, "the test's folder"}}); }

 private:
  std::filesystem::path path_;
};

/// Folder of the case libraries.
std::filesystem::path cases();
std::string read(const std::filesystem::path& file);
/// Whether the process has a library open whose path contains `part`.
bool is_open(const std::string& part);
/// Phase and message of the PluginError that `call` throws; empty when it throws none.
struct Refusal {
  std::string phase, message;
};
Refusal refusal_of(const std::function<void()>& call);
/// Both as given, the message by a part of it.
void expect_refusal(const Refusal& refusal, const std::string& phase, const std::string& text);

}  // namespace trainer::plugin
