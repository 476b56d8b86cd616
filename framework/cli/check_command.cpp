#include <cli/commands.hpp>

namespace trainer::cli {

void add_check(CLI::App& app, Common& common) {
  static RecipeArguments recipe;
  static std::string side;
  CLI::App* command = app.add_subcommand(
      "check", "Find out before a run whatever can be known: recipe, files, captions, targets, devices");
  add_recipe(*command, recipe);
  add_budget(*command, recipe);
  add_resume_with(*command, side);
  command->footer("Example: trainer check recipes/quickstart.toml");
  // Missing files are findings among others.
  command->callback([&common] {
    common.action = [&common] {
      return run_with_recipe("check", recipe, {{"resume_with", side}}, common, {.paths_must_exist = false});
    };
  });
}

}  // namespace trainer::cli
