/// @file `<name>.plugin.toml` beside a plugin: what it offers, what it was built for and what it can be told, read
/// without opening the library. Free of LibTorch: the front lists plugins and checks recipes with it.
#pragma once

#include <recipe/schema.hpp>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::plugin {

/// One component of a plugin. A library that offers several has one manifest for each.
struct Manifest {
  recipe::ComponentSchema schema;  ///< name, kind, summary, options
  std::string plugin;              ///< name in the library's descriptor; the component's unless the key is given
  std::string version, api, torch, fingerprint;
  double cuda_capability = 0;           ///< the least compute capability of a CUDA device that it runs on; 0: any
  std::filesystem::path library, file;  ///< absolute
  std::string origin{};                 ///< of the folder it was found in; empty when read by itself
};

/// A folder that is searched, and where the choice came from ("TRAINER_PLUGIN_PATH", "build tree", "installed").
struct SearchFolder {
  std::filesystem::path folder;
  std::string origin;
};

/// Throws PluginError (phase manifest) naming the file, line and key.
Manifest read_manifest(const std::filesystem::path& file);
/// The same from the text of `file`.
Manifest parse_manifest(std::string_view text, const std::filesystem::path& file);

/// Whether it was built with the program, so that the project's own tests prove it.
inline bool is_own(const Manifest& manifest) {
  return manifest.origin == "build tree" || manifest.origin == "installed";
}

/// A plugin of others with the kind and name of one that comes with the program: nobody could tell which one ran.
struct Clash {
  std::string kind, name, text;  ///< `text` names both files
};

struct Found {
  std::vector<Manifest> manifests;    ///< in order of folder, then file name; the first of a kind and name counts
  std::vector<std::string> problems;  ///< manifests that could not be read, one message each
  std::vector<Clash> clashes{};
};

/// Reads all manifests of `folders`. A folder that does not exist is skipped; a bad manifest hides no other.
Found find_manifests(const std::vector<SearchFolder>& folders);

/// The manifest of a component; nullptr where there is none.
const Manifest* find_manifest(const std::vector<Manifest>& all, std::string_view kind, std::string_view name);

/// Throws PluginError (find) when the name is that of a clash.
void require_unambiguous(const Found& found, const std::string& kind, const std::string& name);

/// The schema of a component; one without options for what has no manifest.
const recipe::ComponentSchema& schema_of(const Found& found, std::string_view kind, std::string_view name);

/// Schemas of what was found. Throws PluginError (find) when there is a clash.
std::vector<recipe::ComponentSchema> schemas(const Found& found);

}  // namespace trainer::plugin
