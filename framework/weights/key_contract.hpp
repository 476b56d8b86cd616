/// @file The contract between a model (or adapter) and a file: every tensor the model needs is there with the right
/// shape, and nothing is left over. A file of which nothing fits must be an error, never a log line (diffusers issue
/// 14088: a whole LoRA dropped silently). Free of LibTorch.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trainer::weights {

struct NamedShape {
  std::string name;
  std::vector<int64_t> shape;
  std::string dtype;  ///< as in a file, e.g. "BF16"; empty on the expected side: any
};

struct ContractOptions {
  std::vector<std::string> ignored_prefixes;  ///< found names that may be left over, e.g. "vision_tower."
};

/// Throws Error (bad_input, MODEL_KEYS) that lists, up to 20 each, missing and unexpected names (with the nearest
/// valid name), wrong shapes and wrong dtypes. `where` is the file or folder.
void check_key_contract(const std::string& where, std::span<const NamedShape> expected,
                        std::span<const NamedShape> found, const ContractOptions& options = {});

}  // namespace trainer::weights
