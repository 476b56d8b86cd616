// Bytes as a key of somebody's LoRA file.
#include <adapter/lora_keys.hpp>

#include <string>

#include "target.hpp"

namespace {

using namespace trainer;

/// A family with every feature: fused, swapped, numbered and plain layers.
LoraFamily family() {
  LoraFamily family;
  family.name = "fuzz";
  family.formats = {{.name = "a", .readers = "", .prefix = "transformer."},
                    {.name = "k", .readers = "", .prefix = "lora_unet_", .keys = LoraKeys::kohya, .aliased = true}};
  family.aliases = {{"double_blocks.*.img_attn.qkv", {"blocks.*.to_q", "blocks.*.to_k", "blocks.*.to_v"}},
                    {"single_blocks.*.linear1", {"single.*.to_qkv_mlp_proj"}},
                    {"final_layer.adaLN_modulation.1", {"norm_out.linear"}, true}};
  return family;
}

void parse(std::string_view bytes) {
  static const adapter::LayerNames names(family());
  static const adapter::LayerNames plain(LoraFamily{});
  (void)adapter::other_adapter(bytes);
  const auto key = adapter::parse_lora_key(bytes);
  fuzz::require(!key || bytes.starts_with(key->stem), "a stem begins its key");
  const std::string stem = key ? key->stem : std::string(bytes);
  (void)names.suggestion(stem);
  if (const auto any = plain.resolve(stem))
    fuzz::require(any->prefix + any->name == stem || any->prefix == "base_model.model.", "no part of a name is lost");
  const auto target = names.resolve(stem);
  if (!target) return;
  fuzz::require(stem.starts_with(target->prefix), "a prefix begins its stem");
  for (const std::string& layer : target->layers) {
    const auto alias = names.alias_of(layer);
    fuzz::require(alias.has_value(), "a layer that is read can be written");
    const auto back = names.resolve("transformer." + alias->name);
    fuzz::require(back && back->layers == alias->layers && back->halves_swapped == alias->halves_swapped,
                  "what is written is read as the same layers");
  }
}

}  // namespace
TRAINER_FUZZ_TARGET("lora_keys", parse);
