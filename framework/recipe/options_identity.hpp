/// @file What the options of a component are, as a hash: for cache keys and for what a checkpoint records.
#pragma once

#include <recipe/schema.hpp>

#include <string>

namespace trainer::recipe {

/// A hash of names and values, the same for equal options. One that has its default is left out: a component may get
/// another option, and what was made before it existed stays what it is. `schema`: of the component.
std::string options_identity(const Options& options, const ComponentSchema& schema);
/// Of all of them, as the first versions recorded it. Their checkpoints are still gone on from.
std::string identity_of_all(const Options& options);

}  // namespace trainer::recipe
