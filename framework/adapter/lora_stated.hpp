/// @file What LoRA files say about themselves: peft's configuration, and what our metadata states. Free of LibTorch.
#pragma once

#include <adapter/lora_keys.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace trainer::adapter {

/// Names, in our files, the alpha / rank that was folded into B, where unfolding gives the same bits again.
inline constexpr const char* kFoldedScale = "trainer.folded_scale";
/// Holds peft's configuration in files of diffusers.
inline constexpr const char* kPeftMetadata = "lora_adapter_metadata";

using Metadata = std::map<std::string, std::string>;  ///< of a safetensors file

/// Scales that a file states for its layers in peft's configuration, as peft applies them (get_pattern_key in its
/// utils/other.py): the first of the alpha_patterns that fits, else lora_alpha, else 8.
class StatedScales {
 public:
  /// peft's configuration of this file; none is no error. `prefix` is that of its tensors; with that of peft,
  /// "base_model.model.", alpha stands in adapter_config.json beside the file. Throws Error (bad_input) for a
  /// configuration that cannot be read, says a key twice, has a rank or an alpha that is no number above 0, names what
  /// is not read here (DoRA, regular expressions), or is missing beside peft's names.
  StatedScales(const std::filesystem::path& file, const Metadata& metadata, const std::string& prefix);
  /// Where alpha stands, in words; empty without a configuration.
  [[nodiscard]] const std::string& source() const { return source_; }
  /// Alpha of a layer so that alpha / rank is the scale peft applies; the rank when nothing is stated. Throws Error
  /// (bad_input) when `rank` is none that the configuration states, or when patterns give the parts of a fused layer,
  /// or the names that it has here and there, different alphas.
  [[nodiscard]] double alpha(const LoraTarget& target, int64_t rank) const;
  /// Throws Error (bad_input) when the configuration states another alpha than the file's tensor.
  void require_same(const LoraTarget& target, int64_t rank, double tensor) const;

 private:
  void read(const std::string& json, const std::string& where, const std::string& prefix);
  [[nodiscard]] std::optional<double> pattern(const std::string& layer) const;
  bool rank_stabilised_ = false;
  std::string where_, source_;                            ///< what names the configuration; where alpha stands in it
  std::set<int64_t> ranks_;                               ///< that it states; empty: none
  std::optional<double> alpha_;                           ///< nullopt: there is no configuration
  std::vector<std::pair<std::string, double>> patterns_;  ///< in the order of the file
};

/// As short as it is exact.
std::string number_text(double number);

/// The scale that kFoldedScale states in a file of ours, nullopt without. Throws Error (bad_input) when it is no
/// positive number.
std::optional<double> stated_folded_scale(const std::filesystem::path& file, const Metadata& metadata);

/// The step that our metadata states.
std::optional<int64_t> stated_step(const Metadata& metadata);

}  // namespace trainer::adapter
