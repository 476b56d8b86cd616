#include <adapter/lora_metadata.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <vector>

namespace trainer::adapter {
namespace {

using Json = nlohmann::json;

/// What most layers have; the larger one of two equally common.
int64_t common_rank(std::span<const LoraLayer> layers) {
  std::map<int64_t, std::size_t> counts;
  for (const LoraLayer& layer : layers) ++counts[layer.rank()];
  int64_t rank = 0;
  std::size_t most = 0;
  for (const auto& [one, count] : counts)
    if (count >= most) rank = one, most = count;
  return rank;
}

/// The configuration with which peft computes what the tensors mean: alpha = rank everywhere. Keys as diffusers'
/// save_lora_weights writes them: those of peft.LoraConfig, after the component's prefix.
std::string peft_config(std::span<const LoraLayer> layers, const std::string& prefix) {
  const int64_t rank = common_rank(layers);
  Json ranks = Json::object(), targets = Json::array();
  for (const LoraLayer& layer : layers) {
    targets.push_back(layer.layer);
    if (layer.rank() != rank) ranks[layer.layer] = layer.rank();
  }
  const Json config{{prefix + "peft_type", "LORA"},    {prefix + "r", rank},
                    {prefix + "lora_alpha", rank},     {prefix + "rank_pattern", ranks},
                    {prefix + "alpha_pattern", ranks}, {prefix + "target_modules", targets},
                    {prefix + "lora_dropout", 0.0},    {prefix + "bias", "none"},
                    {prefix + "use_rslora", false},    {prefix + "use_dora", false}};
  return config.dump(2);
}

void add_kohya(weights::Metadata& metadata, std::span<const LoraLayer> layers) {
  const int64_t rank = common_rank(layers);
  const auto of_rank =
      std::find_if(layers.begin(), layers.end(), [&](const LoraLayer& layer) { return layer.rank() == rank; });
  metadata["ss_network_dim"] = std::to_string(rank);
  metadata["ss_network_alpha"] = number_text(of_rank->alpha);
}

}  // namespace

weights::Metadata export_metadata(const LoraFile& lora, std::span<const LoraLayer> layers, const LoraFamily& family,
                                  const LoraFormat& format, std::optional<double> folded_scale) {
  std::vector<NamedShape> shapes;
  for (const LoraLayer& layer : lora.layers) shapes.push_back({layer.layer, {layer.up.size(0), layer.down.size(1)}});
  weights::Metadata metadata{{"format", "pt"}, {"software", "trainer"}};
  if (lora.step) metadata["step"] = std::to_string(*lora.step);
  if (folded_scale) metadata[kFoldedScale] = number_text(*folded_scale);
  if (format.peft_config) metadata[kPeftMetadata] = peft_config(layers, format.prefix);
  if (format.keys == LoraKeys::kohya) add_kohya(metadata, layers);
  if (family.metadata != nullptr) metadata.merge(family.metadata(format.name, shapes));
  metadata.insert(lora.more.begin(), lora.more.end());
  return metadata;
}

}  // namespace trainer::adapter
