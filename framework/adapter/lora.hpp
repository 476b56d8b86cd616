/// @file LoRA (Hu et al. 2021): y = W x + (alpha / rank) B A x, registered as the built-in adapter "lora".
///
/// A [rank, in] and B [out, rank] are fp32 over a base of any dtype: x is cast up, the sum is cast back (peft's
/// behaviour). B starts at zero; A as recipes say: "kaiming" U(-1/sqrt(in), 1/sqrt(in)) (peft's default) or "gaussian"
/// N(0, 1/rank) (diffusers' scripts).
#pragma once

#include <trainer/sdk/registrar.hpp>

namespace trainer::adapter {

/// Adds "lora" to the registry.
void register_lora(Registrar& registrar);

/// A pair of a file on its layer, in fp32 and not trained; on `device`.
std::unique_ptr<LinearAdapter> frozen_lora(const LoraLayer& layer, at::Device device);

}  // namespace trainer::adapter
