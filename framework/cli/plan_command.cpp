#include <cli/commands.hpp>

#include <cstdlib>

namespace trainer::cli {
namespace {

/// No NaN and no infinity, which JSON, in which the engine is asked, has not; nor what gives infinite or no seconds.
std::string a_speed(const std::string& text) {
  const double number = std::strtod(text.c_str(), nullptr);
  return number >= 1e-9 && number <= 1e9 ? "" : text + " is no speed of a device, from 1e-9 to 1e9";
}

}  // namespace

void add_plan(CLI::App& app, Common& common) {
  static RecipeArguments recipe;
  static std::vector<double> tflops;
  static int ranks = 1;
  CLI::App* command =
      app.add_subcommand("plan", "Foretell the memory of a run from the headers of its weight files, without a GPU");
  add_recipe(*command, recipe);
  add_budget(*command, recipe);
  command
      ->add_option(
          "--tflops", tflops,
          "what a device computes in a second, in 1e12 operations as it trains: the plan then tells seconds; one "
          "number, or one for each device with commas between")
      ->delimiter(',')
      ->check(a_speed);
  command->add_option("--ranks", ranks, "plan for one of so many processes, which share every step among them")
      ->check(CLI::Range(1, 65536));
  command->footer("Example: trainer plan recipes/quickstart.toml");
  command->callback([&common] {
    common.action = [&common] {
      return run_with_recipe("plan", recipe, {{"tflops", tflops}, {"ranks", ranks}}, common,
                             {.paths_must_exist = false, .model_must_exist = true});
    };
  });
}

}  // namespace trainer::cli
