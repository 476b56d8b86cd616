/// @file The commands of `trainer`, one file each: every function adds its subcommand to the app and says what it runs.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <recipe/load.hpp>

#include <functional>
#include <string>
#include <vector>

namespace trainer::cli {

/// Options every command has, filled by the parser.
struct Common {
  std::string libtorch;
  std::vector<std::string> plugin_dirs;
  bool json = false;            ///< results as JSON on stdout
  bool quiet = false;           ///< warnings and errors only
  std::function<int()> action;  ///< what the parsed command runs; returns the exit code
};

void add_run(CLI::App& app, Common& common);
void add_check(CLI::App& app, Common& common);
void add_prove(CLI::App& app, Common& common);
void add_plan(CLI::App& app, Common& common);
void add_cache(CLI::App& app, Common& common);
void add_sample(CLI::App& app, Common& common);
void add_export(CLI::App& app, Common& common);
void add_inspect(CLI::App& app, Common& common);
void add_plugins(CLI::App& app, Common& common);
void add_explain(CLI::App& app, Common& common);
void add_doctor(CLI::App& app, Common& common);

/// A recipe on the command line: RECIPE, --set, and --budget where it is offered.
struct RecipeArguments {
  std::string file;
  std::vector<std::string> overrides;
  std::string budget;  ///< replaces the recipe's [memory]; empty: not given
};
/// Adds RECIPE and --set to a subcommand; `arguments` must outlive the parse.
void add_recipe(CLI::App& command, RecipeArguments& arguments);
/// Adds --budget, for commands that train, or plan or prove training.
void add_budget(CLI::App& command, RecipeArguments& arguments);
/// Adds --resume-with, for commands that go on from a checkpoint or foretell it.
void add_resume_with(CLI::App& command, std::string& side);

/// Checks the recipe without LibTorch, so that mistakes are told in milliseconds, then calls the engine.
/// `options`: whether missing files are a mistake.
int run_with_recipe(const std::string& command, const RecipeArguments& arguments, nlohmann::json request,
                    const Common& common, const recipe::LoadOptions& options = {});

}  // namespace trainer::cli
