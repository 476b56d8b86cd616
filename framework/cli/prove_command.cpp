#include <cli/commands.hpp>

namespace trainer::cli {

void add_prove(CLI::App& app, Common& common) {
  static RecipeArguments recipe;
  static bool random_weights = false;
  CLI::App* command = app.add_subcommand(
      "prove", "Show that the recipe's memory strategies train what the plain run trains, bit for bit, on this device");
  add_recipe(*command, recipe);
  add_budget(*command, recipe);
  command->add_flag("--random-weights", random_weights,
                    "Random numbers in the shapes of the weight file; what it holds is not read");
  command->footer(
      "Runs the first and the last block of each type for three steps at the recipe's shapes, with random pictures and "
      "texts; needs the model's weight file, but no data and no encoders. Stores proof.json in run.output.\nExample: "
      "trainer prove "
      "recipes/quickstart.toml");
  command->callback([&common] {
    common.action = [&common] {
      return run_with_recipe("prove", recipe, {{"random_weights", random_weights}}, common,
                             {.paths_must_exist = false});
    };
  });
}

}  // namespace trainer::cli
