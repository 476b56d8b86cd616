// Bytes as MANIFEST.json, once as they are and once with a matching hash put behind them.
#include <base/hash.hpp>
#include <checkpoint/manifest.hpp>

#include <string>

#include "target.hpp"

namespace {

using namespace trainer;

void take(std::string_view bytes) {
  const checkpoint::Manifest manifest = checkpoint::parse_manifest(bytes, "fuzz");
  fuzz::require(checkpoint::manifest_text(manifest) == bytes, "what is accepted is what would be written");
  for (const checkpoint::FileRecord& file : manifest.files)
    fuzz::require(file.name.find('/') == std::string::npos && file.name != "." && file.name != "..",
                  "a manifest names files of its folder");
}

void parse(std::string_view bytes) {
  fuzz::run(take, bytes);
  take(std::string(bytes) + "xxh128 " + xxh128(bytes) + "\n");
}

}  // namespace
TRAINER_FUZZ_TARGET("checkpoint_manifest", parse);
