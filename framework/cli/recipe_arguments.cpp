#include <base/log.hpp>
#include <base/printable.hpp>
#include <base/units.hpp>
#include <cli/commands.hpp>
#include <cli/engine_loader.hpp>
#include <distributed/environment.hpp>
#include <recipe/resolved.hpp>
#include <recipe/write.hpp>

namespace trainer::cli {

void add_recipe(CLI::App& command, RecipeArguments& arguments) {
  command.add_option("RECIPE", arguments.file, "TOML recipe")->required();
  command.add_option("--set", arguments.overrides, "Override one key, e.g. --set optimizer.lr=2e-4 (repeatable)")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
}

void add_budget(CLI::App& command, RecipeArguments& arguments) {
  command
      .add_option(
          "--budget", arguments.budget,
          "Device memory the training may use, like 24GB: the planner then chooses the memory strategies, in place "
          "of the recipe's [memory]")
      ->type_name("SIZE")
      ->check([](const std::string& text) {
        return parse_bytes(text) ? std::string() : "\"" + text + "\" is no size; write one with its unit, like 24GB";
      });
}

void add_resume_with(CLI::App& command, std::string& side) {
  command
      .add_option("--resume-with", side,
                  "Where recipe and checkpoint differ in what is trained: go on as the recipe says, or as the "
                  "checkpoint did; without this the run ends and lists the differences")
      ->check(CLI::IsMember({"recipe", "checkpoint"}));
}

namespace {

/// One of several processes that run together: an error that only it has is for all to know.
bool has_others(const std::string& command) {
  return (command == "run" || command == "cache") && !distributed::find_place().alone();
}

nlohmann::json to_json(const Error& error) {
  return {{"code", static_cast<int>(error.exit_code())}, {"message", printable_lines(error.what())}};
}

/// What keeps a run from starting though the recipe can be understood: files that are missing.
void note_problem(const std::string& file, const std::vector<std::string>& overrides,
                  const std::vector<recipe::ComponentSchema>& components, nlohmann::json& request) {
  try {
    recipe::load(file, overrides, components);
  } catch (const Error& error) {
    request["problem"] = to_json(error);
  }
}

}  // namespace

int run_with_recipe(const std::string& command, const RecipeArguments& arguments, nlohmann::json request,
                    const Common& common, const recipe::LoadOptions& options) {
  const Layout layout = find_layout(common.plugin_dirs);
  const plugin::Found found = plugin::find_manifests(layout.plugins);
  for (const std::string& problem : found.problems) log_warning(problem);
  std::vector<std::string> overrides = arguments.overrides;
  if (!arguments.budget.empty()) {
    for (const std::string& text : overrides)
      if (text.starts_with("memory"))
        throw Error(ExitCode::usage,
                    "--budget replaces the recipe's [memory], --set " + text + " changes it; give one");
    overrides.push_back("memory={budget=" + recipe::in_quotes(arguments.budget) + "}");
  }
  try {
    const recipe::Recipe recipe = recipe::load(arguments.file, overrides, plugin::schemas(found), options);
    request["timeout"] = recipe.distributed.timeout;
    request["recipe"] = recipe::to_json(recipe::resolved(recipe));
    if (command == "check") note_problem(arguments.file, overrides, plugin::schemas(found), request);
  } catch (const Error& error) {
    if (!has_others(command)) throw;
    log(LogLevel::error, error.what());  // at once: the others may be slow to come
    request["failure"] = to_json(error);
  }
  request["json"] = common.json;
  request["quiet"] = common.quiet;
  return call_engine(command, std::move(request), layout, common.libtorch);
}

}  // namespace trainer::cli
