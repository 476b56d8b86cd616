/// @file How the LoRA files of other programs name the layers of a model family. A model plugin that offers a
/// LoraFamily (ModelComponent::lora_family) gets all of it from the host: export in these formats, reading of them,
/// `inspect`. Free of LibTorch.
#pragma once

#include <trainer/sdk/key_contract.hpp>

#include <map>
#include <span>
#include <string>
#include <vector>

namespace trainer {

/// A layer under the name of another program. In names one `*` stands for the number of a block, the same in all.
struct LayerAlias {
  std::string name;  ///< e.g. "double_blocks.*.img_attn.qkv"
  /// The canonical layers it consists of: one, or several of equal size whose output rows follow one another in it,
  /// e.g. {"transformer_blocks.*.attn.to_q", "transformer_blocks.*.attn.to_k", "transformer_blocks.*.attn.to_v"}.
  std::vector<std::string> layers;
  bool halves_swapped = false;  ///< one layer only: there its second half of output rows comes first
};

/// How a format names the two matrices of a layer, and how strong their product is applied.
enum class LoraKeys {
  peft,  ///< "<prefix><layer>.lora_A.weight" and ".lora_B.weight"; readers apply alpha = rank: alpha is folded into B
  kohya  ///< "<prefix><layer>.lora_down.weight", ".lora_up.weight" and ".alpha"; the dots of the layer become "_"
};

struct LoraFormat {
  std::string name;     ///< as `trainer export --format` takes it, e.g. "diffusers"
  std::string readers;  ///< the programs it is for, e.g. "diffusers, ComfyUI"
  std::string prefix;   ///< of every tensor, e.g. "transformer."
  LoraKeys keys = LoraKeys::peft;
  bool aliased = false;      ///< layers are named as in LoraFamily::aliases; otherwise canonically
  bool peft_config = false;  ///< metadata "lora_adapter_metadata" with the configuration peft would have written
};

/// What a LoRA of one model family may look like.
struct LoraFamily {
  std::string name;                 ///< for messages, e.g. "FLUX.2"
  std::vector<LoraFormat> formats;  ///< the first is what a run exports
  std::vector<LayerAlias> aliases;  ///< empty: every name is canonical. Otherwise all layers that can carry a LoRA
  /// Metadata that a file of `format` gets about the model it is for, e.g. "modelspec.architecture"; `layers` are the
  /// canonical layers of the LoRA with the shapes [out, in] of their weights. May be null. Nothing personal.
  std::map<std::string, std::string> (*metadata)(std::string_view format, std::span<const NamedShape> layers) = nullptr;
};

}  // namespace trainer
