/// @file What LoRA files say about themselves: peft's configuration in and out, and the metadata of our exports.
#pragma once

#include <adapter/lora_file.hpp>
#include <map>
#include <set>
#include <weights/safetensors_writer.hpp>

namespace trainer::adapter {

/// Names, in our files, the alpha / rank that was folded into B, where unfolding gives the same bits again.
inline constexpr const char* kFoldedScale = "trainer.folded_scale";

/// Scales that a file states for its layers in peft's configuration, as peft applies them (get_pattern_key in its
/// utils/other.py): the first of the alpha_patterns that fits, else lora_alpha, else 8.
class StatedScales {
 public:
  /// peft's configuration of this file; none is no error. `prefix` is that of its tensors; with that of peft,
  /// "base_model.model.", alpha stands in adapter_config.json beside the file. Throws Error (bad_input) for a
  /// configuration that cannot be read, says a key twice, has a
  /// rank or an alpha that is no number above 0, names what is not read here (DoRA, regular expressions), or is missing
  /// beside peft's names.
  StatedScales(const weights::TensorFile& file, const std::string& prefix);
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

/// The metadata of an export. `layers` as they are written but under canonical names.
weights::Metadata export_metadata(const LoraFile& lora, std::span<const LoraLayer> layers, const LoraFamily& family,
                                  const LoraFormat& format, std::optional<double> folded_scale);

/// The scale that kFoldedScale states in a file of ours, nullopt without. Throws Error (bad_input) when it is no
/// positive number.
std::optional<double> stated_folded_scale(const weights::TensorFile& file);

/// Adds the SHA-256 of the bytes of `tensors`, as they are to be written: to modelspec.* metadata, where there is some,
/// and for `kohya` the two by which web UIs know a LoRA.
void add_hashes(weights::Metadata& metadata, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                bool kohya);

/// The step that our metadata states.
std::optional<int64_t> stated_step(const weights::TensorFile& file);

}  // namespace trainer::adapter
