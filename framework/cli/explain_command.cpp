#include <base/printable.hpp>
#include <cli/commands.hpp>
#include <cli/layout.hpp>
#include <nlohmann/json.hpp>
#include <recipe/reference.hpp>

#include <cstdio>

namespace trainer::cli {

void add_explain(CLI::App& app, Common& common) {
  static std::string key;
  static RecipeArguments recipe;
  CLI::App* command = app.add_subcommand("explain", "Explain a recipe key or section: type, default, range, meaning");
  command->add_option(
      "KEY", key, "e.g. optimizer.lr, optimizer or memory.full_checkpointing; without it: all sections and components");
  command->add_option(
      "RECIPE", recipe.file,
      "with memory.NAME: also what the strategy keeps and recomputes in each type of block of this recipe");
  command->footer("Example: trainer explain objective.timesteps.shift");
  command->callback([&common] {
    common.action = [&common] {
      const auto schemas = plugin::schemas(plugin::find_manifests(find_layout(common.plugin_dirs).plugins));
      const std::string text = recipe::explain(key, schemas);
      const bool both = !recipe.file.empty();
      if (common.json && !both)
        std::printf("%s\n", printable_json(nlohmann::ordered_json{{"key", key}, {"text", text}}).c_str());
      else if (!common.json)
        std::printf("%s", text.c_str());
      if (!both) return 0;
      if (!key.starts_with("memory."))
        throw Error(ExitCode::usage, "a recipe goes with the key of a memory strategy, like memory.full_checkpointing");
      const std::string name = key.substr(7, key.find('.', 7) - 7);
      return run_with_recipe("explain", recipe, {{"strategy", name}}, common);
    };
  });
}

}  // namespace trainer::cli
