/// @file Canonical tensor names of a FLUX.2 transformer (those of diffusers) with their shapes, and the check that a
/// file holds exactly them.
#pragma once

#include <trainer/sdk/weights.hpp>

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config.hpp"

namespace trainer::flux2 {

using Shapes = std::map<std::string, std::vector<int64_t>, std::less<>>;

/// Every tensor of the model.
Shapes expected_tensors(const Config& config);

/// Sum of the elements.
int64_t parameter_count(const Shapes& shapes);

/// Throws Error (bad_input, MODEL_KEYS) listing missing, unexpected and mis-shaped tensors (the first of each kind, and
/// how many there are), with the nearest name, naming the file.
void check_tensors(const WeightSource& weights, const Shapes& expected);

/// " (nearest: \"...\")" with the candidate of the smallest edit distance, or "" when none is near.
std::string nearest_in(std::string_view name, std::span<const std::string> candidates);

/// "[2, 3]"
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace trainer::flux2
