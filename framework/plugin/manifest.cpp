#include <toml++/toml.h>

#include <base/files.hpp>
#include <plugin/manifest.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <optional>

namespace trainer::plugin {
namespace {

constexpr std::size_t kManifestLimit = 1 << 20;

std::string text_of(const toml::table& table, const char* key, const std::filesystem::path& file) {
  const auto value = table[key].value<std::string>();
  if (!value) throw PluginError(file.string(), "manifest", std::string("key \"") + key + "\" is missing or no string");
  return *value;
}

std::vector<std::filesystem::path> manifest_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code absent;  // a folder of the search path may be missing
  for (const auto& entry : std::filesystem::directory_iterator(folder, absent))
    if (entry.path().string().ends_with(".plugin.toml")) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

/// With a plugin that comes with the program. Of two others, the one in the folder that is named first counts.
std::optional<Clash> clash_with(const std::vector<Manifest>& before, const Manifest& one) {
  const auto clash = [&](const Manifest& theirs, const Manifest& ours) {
    return Clash{one.schema.kind, one.schema.name,
                 "the " + one.schema.kind + " \"" + one.schema.name + "\" of " + theirs.file.string() +
                     " has the name of the program's own, " + ours.file.string() +
                     "; give the plugin another name, or take its folder from the search path"};
  };
  const Manifest* const other = find_manifest(before, one.schema.kind, one.schema.name);
  if (other == nullptr || is_own(one) == is_own(*other)) return std::nullopt;
  std::error_code error;  // the same folder under two names is no second plugin
  if (std::filesystem::equivalent(one.file, other->file, error)) return std::nullopt;
  return is_own(one) ? clash(*other, one) : clash(one, *other);
}

}  // namespace

Manifest parse_manifest(std::string_view text, const std::filesystem::path& file) {
  try {
    const toml::table table = toml::parse(text, file.string());
    if (table["manifest"].value<int64_t>() != 1)
      throw PluginError(file.string(), "manifest", "\"manifest = 1\" is missing: not a manifest this program reads");
    Manifest manifest;
    manifest.schema = recipe::parse_component_schema(text, file.string());
    manifest.plugin = table["plugin"].value_or(manifest.schema.name);
    manifest.version = text_of(table, "version", file);
    manifest.api = text_of(table, "api", file);
    manifest.torch = text_of(table, "torch", file);
    manifest.fingerprint = text_of(table, "fingerprint", file);
    if (const toml::node* capability = table.get("cuda_capability")) {
      manifest.cuda_capability = capability->value<double>().value_or(-1);
      if (!(manifest.cuda_capability >= 0))
        throw PluginError(file.string(), "manifest", "\"cuda_capability\" must be a number such as 8.9");
    }
    const std::filesystem::path library = text_of(table, "library", file);
    if (library.empty() || library.has_parent_path() || library == "." || library == "..")
      throw PluginError(file.string(), "manifest", "\"library\" must be a file name beside the manifest");
    manifest.file = std::filesystem::absolute(file);
    manifest.library = manifest.file.parent_path() / library;
    return manifest;
  } catch (const toml::parse_error& error) {
    throw PluginError(file.string(), "manifest",
                      "line " + std::to_string(error.source().begin.line) + ": " + std::string(error.description()));
  } catch (const PluginError&) {
    throw;
  } catch (const Error& error) {
    throw PluginError(file.string(), "manifest", error.what(), error.exit_code());
  }
}

Manifest read_manifest(const std::filesystem::path& file) {
  std::string text;
  try {
    text = read_file(file, kManifestLimit, "plugin manifest");
  } catch (const Error& error) {
    throw PluginError(file.string(), "manifest", error.what(), error.exit_code());
  }
  return parse_manifest(text, file);
}

const Manifest* find_manifest(const std::vector<Manifest>& all, std::string_view kind, std::string_view name) {
  const auto it = std::find_if(all.begin(), all.end(),
                               [&](const Manifest& one) { return one.schema.kind == kind && one.schema.name == name; });
  return it == all.end() ? nullptr : &*it;
}

Found find_manifests(const std::vector<SearchFolder>& folders) {
  Found found;
  for (const auto& [folder, origin] : folders) {
    for (const auto& file : manifest_files(folder)) {
      try {
        Manifest manifest = read_manifest(file);
        manifest.origin = origin;
        if (std::optional<Clash> clash = clash_with(found.manifests, manifest))
          found.clashes.push_back(std::move(*clash));
        if (find_manifest(found.manifests, manifest.schema.kind, manifest.schema.name) == nullptr)
          found.manifests.push_back(std::move(manifest));
      } catch (const Error& error) {
        found.problems.emplace_back(error.what());
      }
    }
  }
  return found;
}

void require_unambiguous(const Found& found, const std::string& kind, const std::string& name) {
  for (const Clash& clash : found.clashes)
    if (clash.kind == kind && clash.name == name) throw PluginError(name, "find", clash.text);
}

const recipe::ComponentSchema& schema_of(const Found& found, std::string_view kind, std::string_view name) {
  static const recipe::ComponentSchema none;
  const Manifest* manifest = find_manifest(found.manifests, kind, name);
  return manifest == nullptr ? none : manifest->schema;
}

std::vector<recipe::ComponentSchema> schemas(const Found& found) {
  for (const Clash& clash : found.clashes) throw PluginError(clash.name, "find", clash.text);
  std::vector<recipe::ComponentSchema> list;
  list.reserve(found.manifests.size());
  for (const Manifest& manifest : found.manifests) list.push_back(manifest.schema);
  return list;
}

}  // namespace trainer::plugin
