/// @file The options of a component of which the recipe says nothing: for proofs, which run components as they come,
/// and for an adapter out of a file.
#pragma once

#include <recipe/schema.hpp>

namespace trainer::recipe {

/// Every key of the schema with its default; `from_file`: those that the file of an adapter says stay empty. Throws
/// Error (bad_recipe) when a key is required.
Options default_options(const ComponentSchema& schema, bool from_file = false);

}  // namespace trainer::recipe
