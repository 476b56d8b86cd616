#include <cli/commands.hpp>

namespace trainer::cli {

void add_run(CLI::App& app, Common& common) {
  static RecipeArguments recipe;
  static std::string resume = "auto";
  static std::string side;
  static int64_t profile = 0;
  CLI::App* command = app.add_subcommand("run", "Train a recipe: cache, train, sample, export");
  add_recipe(*command, recipe);
  add_budget(*command, recipe);
  command
      ->add_option("--resume", resume,
                   "auto: go on from the newest checkpoint if there is one; never: start anew in an empty folder; "
                   "required: fail without a checkpoint; or the path of a checkpoint")
      ->capture_default_str();
  add_resume_with(*command, side);
  command
      ->add_option("--profile", profile,
                   "Profile so many steps after the first: where their time goes, and a trace in RUN/profile")
      ->check(CLI::Range(1, 1000));
  command->footer("Example: trainer run recipes/quickstart.toml --set run.steps=200");
  command->callback([&common] {
    common.action = [&common] {
      return run_with_recipe("run", recipe, {{"resume", resume}, {"resume_with", side}, {"profile", profile}}, common);
    };
  });
}

}  // namespace trainer::cli
