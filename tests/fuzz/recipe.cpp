// Bytes as a recipe: to a checked Recipe, written out, and read again.
#include <recipe/load.hpp>

#include <string>

#include "target.hpp"
#include "temp_file.hpp"

namespace {

using namespace trainer;

void parse(std::string_view bytes) {
  static const fuzz::TempFolder folder;
  const recipe::LoadOptions options{.paths_must_exist = false};
  const recipe::Recipe first = recipe::load(folder.write("recipe.toml", bytes).string(), {}, {}, options);
  try {
    const std::string text = recipe::to_toml(first);
    const recipe::Recipe second = recipe::load(folder.write("resolved.toml", text).string(), {}, {}, options);
    fuzz::require(recipe::differences(first, second).empty(), "a resolved recipe means the same");
    fuzz::require(recipe::to_toml(second) == text, "resolving twice changes nothing");
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    fuzz::require(false, "a resolved recipe loads again");
  }
}

}  // namespace
TRAINER_FUZZ_TARGET("recipe", parse);
