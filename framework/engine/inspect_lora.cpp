#include <assembly/lora_families.hpp>
#include <engine/inspect.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <set>

namespace trainer::engine {
namespace {

/// Ranks, alphas and layers as they apply: fused layers parted, what was folded into B taken out.
void add_pairs(Json& json, const adapter::LoraFile& lora) {
  std::set<int64_t> ranks;
  std::set<double> alphas;
  for (const adapter::LoraLayer& layer : lora.layers) {
    ranks.insert(layer.rank());
    alphas.insert(layer.alpha);
  }
  json["layers"] = lora.layers.size();
  json["ranks"] = ranks;
  json["alphas"] = alphas;
  json["alpha"] = lora.alpha;
  if (lora.step) json["step"] = *lora.step;
  json["trains"] = Json::array();
  for (const adapter::LoraLayer& layer : lora.layers)
    json["trains"].push_back(layer.layer + "  " + std::to_string(layer.up.size(0)) + " x " +
                             std::to_string(layer.down.size(1)) + ", rank " + std::to_string(layer.rank()));
}

/// Of an adapter that is no LoRA: its layers with their tensors.
void add_tensors(Json& json, const adapter::ReadAdapter& read) {
  json["layers"] = read.file.layers.size();
  if (read.step) json["step"] = *read.step;
  json["trains"] = Json::array();
  for (const auto& [layer, tensors] : read.file.layers) {
    std::string parts;
    for (const auto& [end, tensor] : tensors)
      parts += (parts.empty() ? "  " : ", ") + end + " " + shape_text(tensor.sizes().vec());
    json["trains"].push_back(layer + parts);
  }
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
  const std::vector<adapter::AdapterKind> kinds = assembly::adapter_kinds(loader.found());
  if (files.files().size() != 1 || !adapter::is_adapter(files.files().front(), kinds)) return false;
  const weights::TensorFile& file = files.files().front();
  try {
    const assembly::KnownAdapter known = assembly::open_adapter(loader, file);
    const adapter::ReadAdapter& read = known.adapter;
    const std::string what = read.lora ? "LoRA" : "adapter \"" + read.kind + "\"";
    json["what"] = what + " for " + known.family.name + " (model plugin \"" + known.model + "\")";
    json["format"] = read.format;
    const auto& formats = known.family.formats;
    const auto it = std::find_if(formats.begin(), formats.end(),
                                 [&](const LoraFormat& format) { return format.name == read.format; });
    if (!read.lora)
      json["read_by"] = "trainer with this adapter's plugin";
    else
      json["read_by"] =
          it != formats.end() ? "trainer, " + it->readers : "trainer; `trainer export` makes others of it";
    if (read.lora)
      add_pairs(json, *read.lora);
    else
      add_tensors(json, read);
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
