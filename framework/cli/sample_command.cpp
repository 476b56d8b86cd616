#include <cli/commands.hpp>

namespace trainer::cli {

void add_sample(CLI::App& app, Common& common) {
  static RecipeArguments recipe;
  static std::string lora, output;
  static std::vector<std::string> prompts;
  CLI::App* command = app.add_subcommand("sample", "Draw pictures with the recipe's model, with or without a LoRA");
  add_recipe(*command, recipe);
  command->add_option("--lora", lora, "LoRA file of any format (docs/lora-formats.md); without it the model as it is");
  command->add_option("--prompt", prompts, "What to draw (repeatable); without it the recipe's sample.prompts")
      ->expected(1)
      ->take_all();
  command->add_option("--output", output,
                      "PNG file for the pictures, one row a prompt; is there one, it is replaced. Without "
                      "it samples.png, or samples-2.png and so on if that exists");
  command->footer(
      "Example: trainer sample recipes/quickstart.toml --lora runs/quickstart/lora/quickstart-800.safetensors "
      "--prompt \"a cyanotype of a fox\"");
  command->callback([&common] {
    common.action = [&common] {
      return run_with_recipe("sample", recipe, {{"lora", lora}, {"prompts", prompts}, {"output", output}}, common);
    };
  });
}

}  // namespace trainer::cli
