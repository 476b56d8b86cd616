/// @file What the parts of a model weigh, from its headers alone: what a placement balances.
#pragma once

#include <assembly/model_builder.hpp>
#include <trainer/sdk/placement.hpp>

namespace trainer::assembly {

/// All of the request but devices and micro-batches. `inventory` and `build` are those of the model's builder.
PlacementRequest placement_request(Model& model, const Inventory& inventory, const WeightSource& source,
                                   const BuildOptions& build);

}  // namespace trainer::assembly
