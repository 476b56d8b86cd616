/// @file The quickstart's FLUX.2 miniature opened through the plugin host, with the strategies that a test names: what
/// a run loads, without a recipe.
#pragma once

#include <assembly/assemble.hpp>
#include <support/plugins.hpp>

#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace trainer::fp8::testing {

using trainer::testing::built_plugins;
using trainer::testing::make_strategy;
using trainer::testing::options_of;

std::filesystem::path quickstart_transformer();

/// Options of "fp8_weight_only": the manifest's defaults, changed by `changes`.
Table fp8_options(const Table& changes = {});

struct Setting {
  at::ScalarType dtype = at::kBFloat16;
  std::optional<Table> fp8 = {};  ///< options, or no packing
  bool recompute = false;         ///< with full_checkpointing
  std::filesystem::path files = quickstart_transformer();
  std::string packing = "fp8_weight_only";  ///< what `fp8` are the options of
};

/// With LoRA of rank 16 on the default targets, both of its matrices filled with numbers.
assembly::LoadedModel open_model(const Setting& setting);

/// What one forward and backward of the flow-matching loss gives.
struct Result {
  double loss = 0;
  at::Tensor output;  ///< the velocity for the same inputs
  std::map<std::string, at::Tensor> gradients;
};
Result run(assembly::LoadedModel& loaded);

/// All gradients as one vector, in the order of their names.
at::Tensor joined(const std::map<std::string, at::Tensor>& gradients);

}  // namespace trainer::fp8::testing
