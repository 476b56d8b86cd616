/// @file From a component's kind and name to its factory: find, manifest, gate, open, handshake, fingerprint, init.
/// The order and its reasons: docs/adr/0001-plugin-abi.md.
#pragma once

#include <plugin/manifest.hpp>
#include <plugin/registry.hpp>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace trainer::plugin {

/// The plugins of a process. Libraries are opened when a component is asked for and stay open.
class Loader {
 public:
  /// Reads the manifests of `folders`; opens nothing.
  explicit Loader(std::vector<SearchFolder> folders);

  [[nodiscard]] const Found& found() const { return found_; }
  /// Where plugins are looked for.
  [[nodiscard]] const std::vector<SearchFolder>& folders() const { return folders_; }
  /// The libraries that are open, each with the beginning of its content's hash: "flux2.so 1f2e3d4c, lora.so ...".
  [[nodiscard]] std::string identity() const;
  Registry& registry() { return registry_; }

  /// Makes sure that the component is in the registry, opening its library if need be. `kind` as in manifests
  /// ("model", "text_encoder", ...). Throws PluginError; the registry is then unchanged.
  void require(const std::string& kind, const std::string& name);

  /// Opens and checks one library by its manifest, once. Returns what it registered ("kind name", ...). Throws
  /// PluginError, also when the component that the manifest promises is not among it; the registry is then unchanged.
  std::vector<std::string> load(const Manifest& manifest);

 private:
  [[nodiscard]] bool registered(const std::string& kind, const std::string& name) const;
  [[nodiscard]] const Manifest& manifest_of(const std::string& kind, const std::string& name) const;

  std::vector<SearchFolder> folders_;
  Found found_;
  Registry registry_;
  std::map<std::filesystem::path, std::vector<std::string>> loaded_;  ///< library -> what it registered
};

}  // namespace trainer::plugin
