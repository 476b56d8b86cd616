#include <cli/commands.hpp>

namespace trainer::cli {

void add_run(CLI::App& app, Common& common) {
  static RecipeArguments recipe;
  static std::string resume = "auto";
  CLI::App* command = app.add_subcommand("run", "Train a recipe: cache, train, sample, export");
  add_recipe(*command, recipe);
  add_budget(*command, recipe);
  command
      ->add_option("--resume", resume,
                   "auto: go on from the newest checkpoint if there is one; never: start anew in an empty folder; "
                   "required: fail without a checkpoint; or the path of a checkpoint")
      ->capture_default_str();
  command->footer("Example: trainer run recipes/quickstart.toml --set run.steps=200");
  command->callback([&common] {
    common.action = [&common] { return run_with_recipe("run", recipe, {{"resume", resume}}, common); };
  });
}

}  // namespace trainer::cli
