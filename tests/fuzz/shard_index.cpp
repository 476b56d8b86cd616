// Bytes as model.safetensors.index.json.
#include <weights/shard_index.hpp>

#include <string>

#include "target.hpp"

namespace {

using namespace trainer;

void parse(std::string_view bytes) {
  const weights::ShardIndex index = weights::parse_shard_index(bytes, "fuzz");
  fuzz::require(!index.weight_map.empty(), "an index names tensors");
  for (const std::string& shard : index.shards) {
    fuzz::require(shard.find('/') == std::string::npos && shard.find('\0') == std::string::npos,
                  "a shard is a file of the folder");
    fuzz::require(shard.size() <= 255 && shard.ends_with(".safetensors"), "a shard is a safetensors file");
  }
  for (const auto& [tensor, shard] : index.weight_map)
    fuzz::require(shard < index.shards.size(), "each tensor has a shard");
}

}  // namespace
TRAINER_FUZZ_TARGET("shard_index", parse);
