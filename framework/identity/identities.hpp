/// @file What the files are that a run trains on, as hashes: for checkpoints, and for ranks that must have the same.
#pragma once

#include <recipe/recipe.hpp>
#include <trainer/sdk/weights.hpp>

#include <map>
#include <string>

namespace trainer::identity {

/// "model": weights of `model`, as loaded; "model_config": config.json beside them; and of a LoRA that training starts
/// from "start", its values, and "start_config", adapter_config.json where that states its alpha. Throws Error as
/// opening them does.
std::map<std::string, std::string> identities_of_weights(const recipe::Recipe& recipe, const WeightSource& model);

}  // namespace trainer::identity
