/// @file Canonical tensor names of a FLUX.2 transformer (those of diffusers) with their shapes, and the check that a
/// file holds exactly them.
#pragma once

#include <trainer/sdk/model.hpp>

#include <map>
#include <string>
#include <vector>

#include "config.hpp"

namespace trainer::flux2 {

using Shapes = std::map<std::string, std::vector<int64_t>, std::less<>>;

/// Every tensor of the model.
Shapes expected_tensors(const Config& config);

/// Two blocks of each type, with guidance; its sizes can be told from the tensors.
Miniature miniature();

/// Sum of the elements.
int64_t parameter_count(const Shapes& shapes);

/// Throws Error (bad_input, MODEL_KEYS) that lists all missing, unexpected and mis-shaped tensors, naming the file.
/// Scales beside weights in fp8 are accepted.
void check_tensors(const WeightSource& weights, const Shapes& expected);

}  // namespace trainer::flux2
