#include <base/log.hpp>
#include <cli/commands.hpp>
#include <cli/engine_loader.hpp>
#include <recipe/load.hpp>

namespace trainer::cli {

void add_recipe(CLI::App& command, RecipeArguments& arguments) {
  command.add_option("RECIPE", arguments.file, "TOML recipe")->required();
  command.add_option("--set", arguments.overrides, "Override one key, e.g. --set optimizer.lr=2e-4 (repeatable)")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
}

int run_with_recipe(const std::string& command, const RecipeArguments& arguments, nlohmann::json request,
                    const Common& common, bool paths_must_exist) {
  const Layout layout = find_layout(common.plugin_dirs);
  const plugin::Found found = plugin::find_manifests(layout.plugins);
  for (const std::string& problem : found.problems) log_warning(problem);
  recipe::load(arguments.file, arguments.overrides, plugin::schemas(found), {.paths_must_exist = paths_must_exist});
  request["recipe"] = arguments.file;
  request["set"] = arguments.overrides;
  request["json"] = common.json;
  request["quiet"] = common.quiet;
  return call_engine(command, std::move(request), layout, common.libtorch);
}

}  // namespace trainer::cli
