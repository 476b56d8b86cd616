#include <recipe/default_options.hpp>

#include <utility>

namespace trainer::recipe {

Options default_options(const ComponentSchema& schema, bool from_file) {
  Table values;
  for (const OptionSpec& option : schema.options) {
    if (option.required)
      throw Error(ExitCode::bad_recipe, "the " + schema.kind + " \"" + schema.name + "\" cannot be made without \"" +
                                            option.key + "\", which has no default");
    values[option.key] = option.in_file && from_file ? Value{} : option.fallback;
  }
  for (const OptionSpec& option : schema.options)
    if (!option.same_as.empty()) values[option.key] = values[option.same_as];
  return {schema.name, std::move(values)};
}

}  // namespace trainer::recipe
