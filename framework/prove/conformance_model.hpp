/// @file The built-in model that strange memory strategies are proven on: two streams (picture and text) through joint
/// attention, then one, all blocks reading one shared modulation, as in FLUX.2, with sizes of some tens. Its last
/// two-stream block feeds nothing with its text half but the join, and its prologue trains what all blocks share.
#pragma once

#include <plugin/registry.hpp>

namespace trainer::prove {

/// Adds the model "conformance", with its miniature. Inputs: latents, timestep, prompt_embeds [L, 12].
void add_conformance_model(plugin::Registry& registry);

}  // namespace trainer::prove
