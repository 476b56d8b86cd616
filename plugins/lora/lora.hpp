/// @file LoRA (Hu et al. 2021), the adapter "lora": y = W x + (alpha / rank) B A x.
///
/// A [rank, in] and B [out, rank] are fp32 over a base of any dtype: x is cast up, the sum is cast back (peft's
/// behaviour). B starts at zero; A as the recipe says: "kaiming" U(-1/sqrt(in), 1/sqrt(in)) (peft's default) or
/// "gaussian" N(0, 1/rank) (diffusers' scripts). With a file, both start at the file's values.
#pragma once

#include <trainer/sdk/adapter.hpp>
#include <trainer/sdk/options.hpp>

#include <memory>

namespace trainer::lora {

/// The adapter with the options of lora.plugin.toml. Without a rank it must start from a file.
std::unique_ptr<Adapter> make_lora(const Options& options);

}  // namespace trainer::lora
