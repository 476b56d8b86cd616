#include <recipe/schema.hpp>

#include <recipe/types.hpp>

#include <utility>

namespace trainer::recipe {

const std::vector<TypeName>& type_names() {
  static const std::vector<TypeName> names = {
      {kBool, "boolean", "true or false"},
      {kInt, "integer", "an integer"},
      {kFloat, "number", "a number"},
      {kString, "string", "a string"},
      {kPath, "path", "a path"},
      {kBytes, "bytes", "an amount of memory like \"22GB\""},
      {kIntList, "integers", "a list of integers"},
      {kFloatList, "numbers", "a list of numbers"},
      {kStringList, "strings", "a list of strings"},
  };
  return names;
}

std::string type_in_words(unsigned type) {
  std::string out, separator;
  for (const TypeName& name : type_names()) {
    if ((type & name.type) != 0) out += std::exchange(separator, " or ") + name.words;
  }
  return out;
}

}  // namespace trainer::recipe
