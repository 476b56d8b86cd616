#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/scalar_tensor.h>
#include <adapter/fuse.hpp>
#include <adapter/lora_metadata.hpp>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>
#include <weights/convert.hpp>
#include <weights/write.hpp>

#include <algorithm>
#include <map>

namespace trainer::adapter {
namespace {

using Named = std::vector<std::pair<std::string, at::Tensor>>;

/// The layers under the names of a format that has its own: fused where the alias is, halves exchanged.
std::vector<LoraLayer> aliased(const std::vector<LoraLayer>& layers, const LoraFamily& family) {
  const LayerNames names(family);
  std::map<std::string, std::pair<LoraTarget, std::vector<LoraLayer>>> groups;
  for (const LoraLayer& layer : layers) {
    const std::optional<LoraTarget> alias = names.alias_of(layer.layer);
    if (!alias)
      throw Error(ExitCode::bad_input, "the layer " + quote_name(layer.layer) + " of " + family.name +
                                           " has no name in this format" + names.suggestion(layer.layer));
    auto& group = groups[alias->name];
    group.first = *alias;
    group.second.push_back(layer);
  }
  std::vector<LoraLayer> out;
  for (const auto& [name, group] : groups) {
    const auto& [alias, parts] = group;
    LoraLayer layer = alias.layers.size() > 1 ? fuse(name, alias.layers, parts) : parts.front();
    layer.layer = name;
    out.push_back(alias.halves_swapped ? swap_halves(std::move(layer)) : std::move(layer));
  }
  return out;
}

/// The common scale of layers, when folding and unfolding it gives every bit again.
std::optional<double> reversible_scale(const std::vector<LoraLayer>& layers) {
  if (layers.empty() || layers.front().scale() == 1) return {};
  const double scale = layers.front().scale();
  for (const LoraLayer& layer : layers) {
    if (layer.scale() != scale || layer.down.scalar_type() != layer.up.scalar_type()) return {};
    if (!at::equal(unfold(fold(layer), scale).up, layer.up)) return {};
  }
  return scale;
}

/// In the type of the matrices, as kohya's trainers store it, unless that would change it.
at::Tensor alpha_tensor(const LoraLayer& layer) {
  const at::Tensor alpha = at::scalar_tensor(layer.alpha, at::kFloat);
  const at::Tensor same_type = alpha.to(layer.up.scalar_type());
  return at::equal(same_type.to(at::kFloat), alpha) ? same_type : alpha;
}

Named tensors_of(const std::vector<LoraLayer>& layers, const LoraFormat& format) {
  Named tensors;
  const bool kohya = format.keys == LoraKeys::kohya;
  for (const LoraLayer& layer : layers) {
    std::string name = layer.layer;
    if (kohya) std::replace(name.begin(), name.end(), '.', '_');
    name = format.prefix + name;
    tensors.emplace_back(name + (kohya ? ".lora_down.weight" : ".lora_A.weight"), layer.down);
    tensors.emplace_back(name + (kohya ? ".lora_up.weight" : ".lora_B.weight"), layer.up);
    if (kohya) tensors.emplace_back(name + ".alpha", alpha_tensor(layer));
  }
  return tensors;
}

}  // namespace

const LoraFormat& format_named(const LoraFamily& family, const std::string& name) {
  std::vector<std::string> names;
  for (const LoraFormat& format : family.formats) {
    if (format.name == name) return format;
    names.push_back(format.name);
  }
  std::string list;
  for (const std::string& one : names) list += (list.empty() ? "" : ", ") + one;
  throw Error(ExitCode::usage, "there is no format \"" + name + "\" for " + family.name + did_you_mean(name, names) +
                                   "; there are: " + list);
}

void write_lora(const std::filesystem::path& file, const LoraFile& lora, const LoraFamily& family,
                const LoraFormat& format) {
  std::vector<LoraLayer> layers = format.aliased ? aliased(lora.layers, family) : lora.layers;
  std::optional<double> folded;
  if (format.keys == LoraKeys::peft) {
    folded = reversible_scale(layers);
    for (LoraLayer& layer : layers) layer = fold(std::move(layer));
  }
  const Named tensors = tensors_of(layers, format);
  for (const auto& [name, tensor] : tensors)
    if (!weights::all_finite(tensor))
      throw Error(ExitCode::non_finite, "\"" + name + "\" holds NaN or infinity: nothing is exported");
  weights::Metadata metadata = export_metadata(lora, layers, family, format, folded);
  add_hashes(metadata, tensors, format.keys == LoraKeys::kohya);
  weights::write_safetensors(file, tensors, metadata);
}

}  // namespace trainer::adapter
