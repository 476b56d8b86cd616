#include <adapter/lora_file.hpp>
#include <assembly/lora_families.hpp>
#include <engine/inspect.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <set>

namespace trainer::engine {
namespace {

/// Ranks, alphas and layers as they apply: fused layers parted, what was folded into B taken out.
void add_layers(Json& json, const assembly::KnownLora& known) {
  std::set<int64_t> ranks;
  std::set<double> alphas;
  for (const LoraLayer& layer : known.lora.layers) {
    ranks.insert(layer.rank());
    alphas.insert(layer.alpha);
  }
  json["layers"] = known.lora.layers.size();
  json["ranks"] = ranks;
  json["alphas"] = alphas;
  json["alpha"] = known.lora.alpha;
  if (known.lora.step) json["step"] = *known.lora.step;
  json["trains"] = Json::array();
  for (const LoraLayer& layer : known.lora.layers)
    json["trains"].push_back(layer.layer + "  " + std::to_string(layer.up.size(0)) + " x " +
                             std::to_string(layer.down.size(1)) + ", rank " + std::to_string(layer.rank()));
}

/// Without a family: what the keys alone say.
void add_keys(Json& json, const weights::TensorFile& file) {
  std::set<std::string> prefixes, kinds;
  std::size_t layers = 0;
  for (const std::string& name : file.names()) {
    const auto key = adapter::parse_lora_key(name);
    if (const std::string other = adapter::other_adapter(name); !other.empty()) kinds.insert(other);
    if (!key || key->part != adapter::LoraPart::down) continue;
    ++layers;
    prefixes.insert(name.substr(0, name.find_first_of("._")));
    kinds.insert(key->kohya ? "kohya keys" : "peft keys");
  }
  json["format"] = kinds;
  json["prefixes"] = prefixes;
  json["layers"] = layers;
}

}  // namespace

bool inspect_lora(Json& json, const weights::ModelFiles& files, plugin::Loader& loader) {
  if (files.files().size() != 1 || !adapter::is_lora(files.files().front())) return false;
  const weights::TensorFile& file = files.files().front();
  try {
    const assembly::KnownLora known = assembly::open_lora(loader, file);
    json["what"] = "LoRA for " + known.family.name + " (model plugin \"" + known.model + "\")";
    json["format"] = known.lora.format;
    const auto& formats = known.family.formats;
    const auto it = std::find_if(formats.begin(), formats.end(),
                                 [&](const LoraFormat& format) { return format.name == known.lora.format; });
    json["read_by"] = it != formats.end() ? "trainer, " + it->readers : "trainer; `trainer export` makes others of it";
    add_layers(json, known);
  } catch (const Error& error) {
    const auto family = assembly::family_of_names(loader, file);
    json["what"] =
        family ? "damaged or unsupported LoRA for " + family->name : "LoRA of a family that no model plugin knows";
    json["problem"] = error.what();
    add_keys(json, file);
  }
  return true;
}

}  // namespace trainer::engine
