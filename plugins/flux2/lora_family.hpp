/// @file The LoRA files of the FLUX.2 family: which formats there are, who reads them, how they name the layers.
#pragma once

#include <trainer/sdk/lora_names.hpp>

namespace trainer::flux2 {

/// diffusers, comfyui (original names, as ai-toolkit writes) and kohya (as musubi-tuner writes). Metadata names the
/// variant (dev, klein 4B or 9B) where its width tells it; other sizes get none.
LoraFamily lora_family();

}  // namespace trainer::flux2
