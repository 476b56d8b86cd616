/// @file The value types by name (manifests) and in words (messages, reference).
#pragma once

#include <recipe/schema.hpp>

#include <string>
#include <vector>

namespace trainer::recipe {

struct TypeName {
  ValueType type;
  std::string name;   ///< "integers"
  std::string words;  ///< "a list of integers"
};

const std::vector<TypeName>& type_names();

}  // namespace trainer::recipe
