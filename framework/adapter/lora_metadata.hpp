/// @file What LoRA files say about themselves: peft's configuration in and out, and the metadata of our exports.
#pragma once

#include <adapter/lora_file.hpp>
#include <map>
#include <set>
#include <weights/safetensors_writer.hpp>

namespace trainer::adapter {

/// Names, in our files, the alpha / rank that was folded into B, where unfolding gives the same bits again.
inline constexpr const char* kFoldedScale = "trainer.folded_scale";

/// Scales that a file states for its layers: those of the patterns, else the common one.
class StatedScales {
 public:
  /// peft's configuration of this file; empty when there is none. `prefix` is that of its tensors; with that of peft,
  /// "base_model.model.", alpha stands in adapter_config.json beside the file. Throws Error (bad_input) for a
  /// configuration that cannot be read, says a key twice, has a
  /// rank or an alpha that is no number above 0, names what is not read here (DoRA, regular expressions), or is missing
  /// beside peft's names.
  StatedScales(const weights::TensorFile& file, const std::string& prefix);
  [[nodiscard]] bool stated() const { return stated_; }
  /// Alpha of a layer so that alpha / rank is the scale peft applies; the rank when nothing is stated. Throws Error
  /// (bad_input) when `rank` is none that the configuration states.
  [[nodiscard]] double alpha(const std::string& layer, int64_t rank) const;

 private:
  void read(const std::string& json, const std::string& where, const std::string& prefix);
  bool stated_ = false, rank_stabilised_ = false;
  std::string where_;        ///< names the configuration
  std::set<int64_t> ranks_;  ///< that it states; empty: none
  std::optional<double> alpha_;
  std::map<std::string, double> patterns_;
};

/// The metadata of an export. `layers` as they are written but under canonical names.
weights::Metadata export_metadata(const LoraFile& lora, std::span<const LoraLayer> layers, const LoraFamily& family,
                                  const LoraFormat& format, std::optional<double> folded_scale);

/// The scale that kFoldedScale states, nullopt without. Throws Error (bad_input) when it is no positive number.
std::optional<double> stated_folded_scale(const weights::TensorFile& file);

/// Adds the SHA-256 of the bytes of `tensors`, as they are to be written: to modelspec.* metadata, where there is some,
/// and for `kohya` the two by which web UIs know a LoRA.
void add_hashes(weights::Metadata& metadata, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                bool kohya);

/// The step that our metadata states.
std::optional<int64_t> stated_step(const weights::TensorFile& file);

}  // namespace trainer::adapter
