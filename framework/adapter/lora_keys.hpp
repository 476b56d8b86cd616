/// @file Which layers of a model a key of a LoRA file means, whatever program wrote it. Free of LibTorch.
///
/// Sources of the spellings: diffusers loaders/lora_conversion_utils.py, ComfyUI comfy/lora.py, musubi-tuner
/// networks/lora.py, ai-toolkit, DiffSynth; see docs/lora-formats.md.
#pragma once

#include <trainer/sdk/lora_names.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::adapter {

enum class LoraPart { down, up, alpha };

/// "transformer.x.lora_A.weight" is the `down` of the stem "transformer.x".
struct LoraKey {
  LoraPart part = LoraPart::down;
  std::string stem;
  bool kohya = false;  ///< lora_down, lora_up or alpha rather than lora_A or lora_B
  bool usual = true;   ///< spelled as LoraKeys has it, not ".lora_A.default.weight" and the like
};

/// nullopt when the key ends in no known way.
std::optional<LoraKey> parse_lora_key(std::string_view key);

/// The kind of adapter that a key belongs to and that is no plain LoRA ("LoKr", "LoHa", "DoRA"), or "".
std::string other_adapter(std::string_view key);

/// What a stem names.
struct LoraTarget {
  std::string prefix;               ///< what stood before the name
  std::string name;                 ///< as in the file but dotted; unique for the layer
  std::vector<std::string> layers;  ///< canonical, in the order of output rows
  bool halves_swapped = false;
};

/// The names of one family, looked up both ways.
class LayerNames {
 public:
  explicit LayerNames(const LoraFamily& family);
  /// nullopt: no layer of the family. Without aliases every dotted name is taken as canonical.
  [[nodiscard]] std::optional<LoraTarget> resolve(std::string_view stem) const;
  /// The alias that a canonical layer is part of; nullopt when there is none.
  [[nodiscard]] std::optional<LoraTarget> alias_of(const std::string& layer) const;
  /// " (did you mean ...?)" for a stem that resolve refuses.
  [[nodiscard]] std::string suggestion(std::string_view stem) const;

 private:
  struct Pattern {
    std::string name;
    std::vector<std::string> layers;
    bool halves_swapped = false;
  };
  [[nodiscard]] std::optional<LoraTarget> look_up(std::string_view name, char separator) const;
  std::vector<Pattern> aliases_, patterns_;  // patterns_: aliases and canonical names
  std::vector<std::string> prefixes_;        // longest first
};

}  // namespace trainer::adapter
