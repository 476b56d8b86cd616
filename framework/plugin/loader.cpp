#include <base/hash.hpp>
#include <plugin/library.hpp>
#include <plugin/loader.hpp>
#include <plugin/match.hpp>
#include <plugin/permissions.hpp>
#include <trainer/sdk/fingerprint.hpp>
#include <trainer/sdk/names.hpp>

#include <algorithm>

namespace trainer::plugin {
namespace {

static_assert(TRAINER_API_MAJOR == 0 && TRAINER_API_MINOR == 1, "kApi and the descriptor's numbers are one thing");

const Program& program() {
  static const Program ours{kApi, TORCH_VERSION, TRAINER_SDK_FINGERPRINT};
  return ours;
}

/// Before dlopen: constructors run in it, and a wrong LibTorch or sanitizer can end the process there.
void gate(const Manifest& manifest) {
  if (const std::string text = mismatch(manifest, program()); !text.empty())
    throw PluginError(manifest.schema.name, "manifest", text);
  require_safe_permissions(manifest.schema.name, manifest.library);
}

const trainer_plugin_v1& handshake(const Manifest& manifest, const void* library) {
  const std::string& name = manifest.schema.name;
  const auto* plugin = static_cast<const trainer_plugin_v1*>(find(library, "trainer_plugin"));
  if (plugin == nullptr)
    throw PluginError(name, "handshake",
                      manifest.library.string() + " does not export trainer_plugin; is it a plugin?");
  if (plugin->magic != TRAINER_PLUGIN_MAGIC || plugin->struct_size < sizeof(trainer_plugin_v1))
    throw PluginError(name, "handshake",
                      "the descriptor in " + manifest.library.string() + " is not one of this program");
  if (plugin->api_major != TRAINER_API_MAJOR || plugin->api_minor > TRAINER_API_MINOR)
    throw PluginError(name, "handshake",
                      "the library is for SDK API " + std::to_string(plugin->api_major) + "." +
                          std::to_string(plugin->api_minor) + ", this program has " + kApi);
  if (plugin->name == nullptr || plugin->version == nullptr || plugin->fingerprint == nullptr ||
      plugin->init == nullptr)
    throw PluginError(name, "handshake", "the descriptor in " + manifest.library.string() + " has empty fields");
  if (manifest.plugin != plugin->name)
    throw PluginError(name, "handshake",
                      std::string("the library calls itself \"") + plugin->name + "\", the manifest says \"" +
                          manifest.plugin + "\"");
  return *plugin;
}

/// Before anything is merged into the registry.
void require_promised(const Manifest& manifest, const std::vector<std::string>& offered) {
  const recipe::ComponentSchema& promised = manifest.schema;
  std::string list;
  for (const std::string& item : offered) {
    if (item == promised.kind + " " + promised.name) return;
    list += (list.empty() ? "" : ", ") + item;
  }
  throw PluginError(promised.name, "init",
                    "the manifest promises the " + promised.kind + " \"" + promised.name +
                        "\", the library registered " + (list.empty() ? "nothing" : list));
}

}  // namespace

Loader::Loader(std::vector<SearchFolder> folders) : folders_(std::move(folders)), found_(find_manifests(folders_)) {}

bool Loader::registered(const std::string& kind, const std::string& name) const {
  const auto names = registry_.names();
  return std::find(names.begin(), names.end(), kind + " " + name) != names.end();
}

const Manifest& Loader::manifest_of(const std::string& kind, const std::string& name) const {
  std::vector<std::string> valid;
  for (const Manifest& manifest : found_.manifests) {
    if (manifest.schema.kind != kind) continue;
    if (manifest.schema.name == name) return manifest;
    valid.push_back(manifest.schema.name);
  }
  std::string searched;
  for (const auto& [folder, origin] : folders_) searched += "\n  " + folder.string() + " (" + origin + ")";
  for (const std::string& problem : found_.problems) searched += "\n  not readable: " + problem;
  throw PluginError(name, "find",
                    "no " + kind + " of this name" + did_you_mean(name, valid) + "; searched:" + searched);
}

void Loader::require(const std::string& kind, const std::string& name) {
  require_unambiguous(found_, kind, name);
  if (!registered(kind, name)) load(manifest_of(kind, name));
}

std::vector<std::string> Loader::load(const Manifest& manifest) {
  if (const auto it = loaded_.find(manifest.library); it != loaded_.end()) {
    require_promised(manifest, it->second);
    return it->second;
  }
  const std::string& name = manifest.schema.name;
  gate(manifest);
  const void* library = nullptr;
  try {
    library = open(manifest.library, Scope::local);
  } catch (const OpenError& error) {
    throw PluginError(name, "open", error.what());
  }
  const trainer_plugin_v1& plugin = handshake(manifest, library);
  if (const std::string fields = fingerprint_difference(plugin.fingerprint, program().fingerprint); !fields.empty())
    throw PluginError(name, "fingerprint",
                      "built for another program:" + fields + "\n  rebuild the plugin with this program's SDK");
  StagedRegistrar registrar(registry_);
  guard(name, "init", [&] { plugin.init(static_cast<Registrar*>(&registrar)); });
  std::vector<std::string> offered = registrar.names();
  require_promised(manifest, offered);
  registrar.merge_into(registry_);
  return loaded_[manifest.library] = std::move(offered);
}

std::string Loader::identity() const {
  constexpr std::size_t kDigits = 8;
  std::map<std::string, std::string> hashes;  // in an order that does not depend on where they lie
  for (const auto& [library, offered] : loaded_)
    hashes[library.filename().string()] = xxh128_file(library).substr(0, kDigits);
  std::string text;
  for (const auto& [name, hash] : hashes) text += (text.empty() ? "" : ", ") + name + " " + hash;
  return text;
}

}  // namespace trainer::plugin
