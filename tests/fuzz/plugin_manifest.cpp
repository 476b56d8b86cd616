// Bytes as NAME.plugin.toml.
#include <plugin/manifest.hpp>

#include <string>

#include "target.hpp"

namespace {

using namespace trainer;

void parse(std::string_view bytes) {
  const plugin::Manifest manifest = plugin::parse_manifest(bytes, "/plugins/fuzz.plugin.toml");
  fuzz::require(manifest.library.parent_path() == "/plugins", "the library lies beside the manifest");
  fuzz::require(!manifest.schema.name.empty() && !manifest.schema.kind.empty(), "a component has a name and a kind");
}

}  // namespace
TRAINER_FUZZ_TARGET("plugin_manifest", parse);
