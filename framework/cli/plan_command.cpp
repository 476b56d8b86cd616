#include <cli/commands.hpp>

namespace trainer::cli {

void add_plan(CLI::App& app, Common& common) {
  static RecipeArguments recipe;
  CLI::App* command =
      app.add_subcommand("plan", "Foretell the memory of a run from the headers of its weight files, without a GPU");
  add_recipe(*command, recipe);
  add_budget(*command, recipe);
  command->footer("Example: trainer plan recipes/quickstart.toml");
  command->callback([&common] {
    common.action = [&common] { return run_with_recipe("plan", recipe, {}, common, /*paths_must_exist=*/false); };
  });
}

}  // namespace trainer::cli
