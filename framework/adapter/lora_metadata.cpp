#include <adapter/lora_metadata.hpp>
#include <base/files.hpp>
#include <nlohmann/json.hpp>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace trainer::adapter {
namespace {

using Json = nlohmann::json;

constexpr const char* kPeftMetadata = "lora_adapter_metadata";
constexpr std::size_t kConfigLimit = 1 << 20;

std::string number_text(double number) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  return {text.data(), end};
}

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

StatedScales::StatedScales(const weights::TensorFile& file, const std::string& prefix) {
  const std::string where = file.path().string() + ": ";
  const auto it = file.metadata().find(kPeftMetadata);
  if (it != file.metadata().end()) {
    read(it->second, where + "its lora_adapter_metadata", prefix);
  } else if (prefix.starts_with("base_model.model.")) {
    const std::filesystem::path config = file.path().parent_path() / "adapter_config.json";
    if (!std::filesystem::exists(config))
      throw Error(ExitCode::bad_input,
                  where +
                      "it is named as peft saves adapters, whose alpha stands in adapter_config.json; put that file "
                      "beside it",
                  "LORA_CONFIG");
    read(read_file(config, kConfigLimit, "adapter_config.json"), config.string(), "");
  }
}

void StatedScales::read(const std::string& text, const std::string& where, const std::string& prefix) {
  const auto fail = [&](const std::string& what) {
    throw Error(ExitCode::bad_input, where + " " + what, "LORA_CONFIG");
  };
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) fail("is no JSON object");
  // diffusers puts the component before each key; other programs write peft's keys as they are.
  const auto value = [&](const std::string& key) {
    const auto found = json.contains(prefix + key) ? json.find(prefix + key) : json.find(key);
    return found == json.end() ? Json() : *found;
  };
  if (value("use_dora") == true) fail("says DoRA, which is not read");
  if (const Json rank_stabilised = value("use_rslora"); rank_stabilised.is_boolean())
    rank_stabilised_ = rank_stabilised.get<bool>();
  if (const Json alpha = value("lora_alpha"); alpha.is_number()) {
    alpha_ = alpha.get<double>();
    stated_ = true;
  }
  const Json patterns = value("alpha_pattern");
  if (!patterns.is_object()) return;
  for (const auto& [name, alpha] : patterns.items()) {
    if (!alpha.is_number() || name.find_first_of("^$*+?()[]{}|\\") != std::string::npos)
      fail("has the alpha_pattern " + quote_name(name) + ": only names with a number are read, no regular expressions");
    patterns_[name] = alpha.get<double>();
    stated_ = true;
  }
}

double StatedScales::alpha(const std::string& layer, int64_t rank) const {
  std::optional<double> alpha = alpha_;
  for (const auto& [name, value] : patterns_)
    if (layer == name || layer.ends_with("." + name)) alpha = value;
  if (!alpha) return static_cast<double>(rank);
  return rank_stabilised_ ? *alpha * std::sqrt(static_cast<double>(rank)) : *alpha;
}

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
  return metadata;
}

std::optional<double> stated_folded_scale(const weights::TensorFile& file) {
  const auto it = file.metadata().find(kFoldedScale);
  if (it == file.metadata().end()) return {};
  double scale = 0;
  const char* end = it->second.data() + it->second.size();
  if (std::from_chars(it->second.data(), end, scale).ptr != end || !std::isfinite(scale) || scale <= 0)
    throw Error(
        ExitCode::bad_input,
        file.path().string() + ": its metadata " + kFoldedScale + " is no positive number: " + quote_name(it->second),
        "LORA_CONFIG");
  return scale;
}

std::optional<int64_t> stated_step(const weights::TensorFile& file) {
  const auto software = file.metadata().find("software"), it = file.metadata().find("step");
  if (software == file.metadata().end() || software->second != "trainer" || it == file.metadata().end()) return {};
  int64_t step = 0;
  const char* end = it->second.data() + it->second.size();
  if (std::from_chars(it->second.data(), end, step).ptr != end || step < 0) return {};
  return step;
}

}  // namespace trainer::adapter
