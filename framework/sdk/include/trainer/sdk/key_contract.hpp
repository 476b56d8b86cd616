/// @file The contract between a model (or adapter) and a file: every tensor the model needs is there with the right
/// shape, and nothing is left over. A file of which nothing fits must be an error, never a log line (diffusers issue
/// 14088: a whole LoRA dropped silently). Free of LibTorch; `named_shapes` in weights.hpp lists what a file holds.
#pragma once

#include <trainer/sdk/abi.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trainer {

struct NamedShape {
  std::string name;
  std::vector<int64_t> shape;
  std::string dtype = {};  ///< compared as text and shown in messages; empty on the expected side: any
};

/// The words of the message, and what may be left over.
struct ContractOptions {
  std::string model = "the model";  ///< what the file should hold, e.g. "the autoencoder"
  std::string advice = "is this the right file, and the right variant in the recipe?";  ///< the last line
  std::function<bool(std::string_view)> ignored = {};  ///< found names that may be left over, e.g. of a vision tower
};

/// Throws Error (bad_input, MODEL_KEYS) that lists, up to 20 each, missing and unexpected names (the first ones with
/// the nearest name of the other list), wrong shapes and wrong dtypes. `where` is the file or folder.
TRAINER_API void check_key_contract(const std::string& where, std::span<const NamedShape> expected,
                                    std::span<const NamedShape> found, const ContractOptions& options = {});

}  // namespace trainer
