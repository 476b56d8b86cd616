/// @file Formats and metadata. Prefixes and keys as diffusers 0.42 (loaders/lora_conversion_utils.py), ComfyUI
/// (comfy/lora.py), ai-toolkit and musubi-tuner (networks/lora_flux_2.py, utils/sai_model_spec.py) have them.
#include "lora_family.hpp"

#include <array>

#include "layout.hpp"

namespace trainer::flux2 {
namespace {

/// A published size of the family, told by its width.
struct Variant {
  int64_t hidden;
  const char *title, *architecture, *musubi, *ai_toolkit;
};
constexpr std::array<Variant, 3> kVariants{{
    {6144, "FLUX.2 [dev] LoRA", "Flux.2-dev/lora", "flux_2_dev", "flux2"},
    {4096, "FLUX.2 [klein] 9B LoRA", "Flux.2-klein-9b/lora", "flux_2_klein_9b", "flux2_klein_9b"},
    {3072, "FLUX.2 [klein] 4B LoRA", "Flux.2-klein-4b/lora", "flux_2_klein_4b", "flux2_klein_4b"},
}};

/// Layers whose input has the width of the model.
bool has_width(std::string_view layer) {
  for (const char* end : {".to_q", ".to_k", ".to_v", "_proj", ".to_out.0", ".to_add_out", ".linear_in"})
    if (layer.ends_with(end)) return true;
  return false;
}

std::map<std::string, std::string> metadata(std::string_view format, std::span<const NamedShape> layers) {
  std::map<std::string, std::string> entries;
  // As musubi-tuner notes it; programs that sort LoRAs tell by it what kind of adapter a file is.
  if (format == "kohya") entries["ss_network_module"] = "networks.lora_flux_2";
  int64_t hidden = 0;
  for (const NamedShape& layer : layers) {
    // The output of the others has it.
    const int64_t width = layer.name.find("blocks.") == std::string::npos ? 0
                          : has_width(layer.name)                         ? layer.shape[1]
                                                                          : layer.shape[0];
    if (width != 0 && hidden != 0 && width != hidden) return entries;
    if (width != 0) hidden = width;
  }
  for (const Variant& variant : kVariants) {
    if (variant.hidden != hidden) continue;
    entries.insert({{"ss_base_model_version", format == "comfyui" ? variant.ai_toolkit : variant.musubi},
                    {"modelspec.sai_model_spec", "1.0.0"},
                    {"modelspec.architecture", variant.architecture},
                    {"modelspec.implementation", "https://github.com/black-forest-labs/flux2"},
                    {"modelspec.title", variant.title}});
  }
  return entries;
}

}  // namespace

LoraFamily lora_family() {
  return {.name = "FLUX.2",
          .formats = {{.name = "diffusers",
                       .readers = "diffusers, ComfyUI (since January 2026), SimpleTuner",
                       .prefix = "transformer.",
                       .peft_config = true},
                      {.name = "comfyui",
                       .readers = "ComfyUI, ai-toolkit, diffusers",
                       .prefix = "diffusion_model.",
                       .aliased = true},
                      {.name = "kohya",
                       .readers = "musubi-tuner, ComfyUI, diffusers",
                       .prefix = "lora_unet_",
                       .keys = LoraKeys::kohya,
                       .aliased = true}},
          .aliases = layer_aliases(),
          .metadata = metadata};
}

}  // namespace trainer::flux2
