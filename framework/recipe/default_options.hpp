/// @file The options of a component of which the recipe says nothing: for proofs, which run components as they come.
#pragma once

#include <recipe/schema.hpp>

namespace trainer::recipe {

/// Every key of the schema with its default. Throws Error (bad_recipe) when a key is required.
Options default_options(const ComponentSchema& schema);

}  // namespace trainer::recipe
