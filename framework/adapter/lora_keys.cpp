#include <adapter/lora_keys.hpp>

#include <trainer/sdk/names.hpp>

#include <algorithm>
#include <array>

namespace trainer::adapter {
namespace {

struct Suffix {
  std::string_view text;
  LoraPart part;
  bool kohya = false, usual = true;
};
constexpr std::array<Suffix, 9> kSuffixes{{
    {".lora_A.weight", LoraPart::down},
    {".lora_B.weight", LoraPart::up},
    {".lora_A.default.weight", LoraPart::down, false, false},  // DiffSynth
    {".lora_B.default.weight", LoraPart::up, false, false},
    {".lora_A", LoraPart::down, false, false},
    {".lora_B", LoraPart::up, false, false},
    {".lora_down.weight", LoraPart::down, true},
    {".lora_up.weight", LoraPart::up, true},
    {".alpha", LoraPart::alpha, true},
}};

constexpr std::size_t kDigits = 5;  // of a block's number

std::string with_separator(std::string text, char separator) {
  std::replace(text.begin(), text.end(), '.', separator);
  return text;
}

/// The number that stands for the `*` of a pattern (empty for a pattern without); nullopt when it does not match.
std::optional<std::string> match(const std::string& pattern, std::string_view text) {
  const std::size_t star = pattern.find('*');
  if (star == std::string::npos) return pattern == text ? std::optional(std::string()) : std::nullopt;
  const std::string_view before = std::string_view(pattern).substr(0, star);
  const std::string_view after = std::string_view(pattern).substr(star + 1);
  if (text.size() <= before.size() + after.size() || !text.starts_with(before) || !text.ends_with(after)) return {};
  const std::string_view number = text.substr(star, text.size() - before.size() - after.size());
  const bool digits = number.find_first_not_of("0123456789") == std::string_view::npos;
  return digits && number.size() <= kDigits ? std::optional(std::string(number)) : std::nullopt;
}

std::string fill(const std::string& pattern, const std::string& number) {
  const std::size_t star = pattern.find('*');
  return star == std::string::npos ? pattern : pattern.substr(0, star) + number + pattern.substr(star + 1);
}

LoraTarget filled(const std::string& name, const std::vector<std::string>& layers, bool swapped,
                  const std::string& number) {
  LoraTarget target{{}, fill(name, number), {}, swapped};
  for (const std::string& layer : layers) target.layers.push_back(fill(layer, number));
  return target;
}

}  // namespace

std::optional<LoraKey> parse_lora_key(std::string_view key) {
  for (const Suffix& suffix : kSuffixes)
    if (key.size() > suffix.text.size() && key.ends_with(suffix.text))
      return LoraKey{suffix.part, std::string(key.substr(0, key.size() - suffix.text.size())), suffix.kohya,
                     suffix.usual};
  return {};
}

std::string other_adapter(std::string_view key) {
  const auto has = [&](std::string_view part) { return key.find(part) != std::string_view::npos; };
  if (has(".lokr_w")) return "LoKr";
  if (has(".hada_w")) return "LoHa";
  if (has(".dora_scale") || has("lora_magnitude_vector")) return "DoRA";
  if (has(".oft_blocks") || has(".oft_R")) return "OFT";
  return {};
}

LayerNames::LayerNames(const LoraFamily& family) {
  for (const LayerAlias& alias : family.aliases) {
    aliases_.push_back({alias.name, alias.layers, alias.halves_swapped});
    patterns_.push_back(aliases_.back());
    for (const std::string& layer : alias.layers)
      if (layer != alias.name) patterns_.push_back({layer, {layer}, false});
  }
  // Conventions of the programs, not of a family: peft, diffusers, ComfyUI, kohya, LyCORIS.
  prefixes_ = {"base_model.model.", "transformer.",      "diffusion_model.", "model.diffusion_model.",
               "lora_unet_",        "lora_transformer_", "lycoris_",         ""};
  for (const LoraFormat& format : family.formats) prefixes_.push_back(format.prefix);
  std::sort(prefixes_.begin(), prefixes_.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() > b.size() : a < b;
  });
  prefixes_.erase(std::unique(prefixes_.begin(), prefixes_.end()), prefixes_.end());
}

std::optional<LoraTarget> LayerNames::look_up(std::string_view name, char separator) const {
  for (const Pattern& pattern : patterns_)
    if (const auto number = match(with_separator(pattern.name, separator), name))
      return filled(pattern.name, pattern.layers, pattern.halves_swapped, *number);
  return {};
}

std::optional<LoraTarget> LayerNames::resolve(std::string_view stem) const {
  for (const std::string& prefix : prefixes_) {
    if (!stem.starts_with(prefix) || stem.size() == prefix.size()) continue;
    const std::string_view name = stem.substr(prefix.size());
    std::optional<LoraTarget> target;
    if (patterns_.empty() && !prefix.ends_with('_')) {
      target = LoraTarget{{}, std::string(name), {std::string(name)}, false};
    } else {
      target = look_up(name, prefix.ends_with('_') ? '_' : '.');
    }
    if (!target && prefix == "base_model.model.") target = resolve(name);  // peft around a name with another prefix
    if (!target) continue;
    target->prefix.insert(0, prefix);
    return target;
  }
  return {};
}

std::optional<LoraTarget> LayerNames::alias_of(const std::string& layer) const {
  if (aliases_.empty()) return LoraTarget{{}, layer, {layer}, false};
  for (const Pattern& alias : aliases_)
    for (const std::string& part : alias.layers)
      if (const auto number = match(part, layer))
        return filled(alias.name, alias.layers, alias.halves_swapped, *number);
  return {};
}

std::string LayerNames::suggestion(std::string_view stem) const {
  std::string_view name = stem;
  char separator = '.';
  for (const std::string& prefix : prefixes_)
    if (name.starts_with(prefix)) {
      name.remove_prefix(prefix.size());
      if (prefix.ends_with('_')) separator = '_';
      break;
    }
  const std::size_t digit = name.find_first_of("0123456789");
  std::string number = "0";
  if (digit != std::string_view::npos)
    number =
        std::string(name.substr(digit, std::min(name.find_first_not_of("0123456789", digit), name.size()) - digit));
  if (number.size() > kDigits) number = "0";
  std::vector<std::string> valid;
  for (const Pattern& pattern : patterns_) valid.push_back(with_separator(fill(pattern.name, number), separator));
  return did_you_mean(name, valid);
}

}  // namespace trainer::adapter
