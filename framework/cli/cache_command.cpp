#include <cli/commands.hpp>

namespace trainer::cli {

void add_cache(CLI::App& app, Common& common) {
  static RecipeArguments recipe;
  CLI::App* command = app.add_subcommand("cache", "Encode pictures and captions into the cache, without training");
  add_recipe(*command, recipe);
  command->footer("Example: trainer cache recipes/quickstart.toml");
  command->callback([&common] { common.action = [&common] { return run_with_recipe("cache", recipe, {}, common); }; });
}

}  // namespace trainer::cli
