/// @file The front: command line and recipe checking, without LibTorch. Commands that need it call the engine.
#include <signal.h>
#include <base/files.hpp>
#include <base/log.hpp>
#include <base/report.hpp>
#include <cli/commands.hpp>
#include <cli/standard_streams.hpp>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>

namespace {

using trainer::ExitCode;

/// The options that a command and those above it take, as they are written.
std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  for (const CLI::App* command : app.get_subcommands())
    for (std::string& name : options_of(*command)) names.push_back(std::move(name));
  return names;
}

/// A message about words of the command line that nothing takes.
std::string unknown_words(const CLI::App& app) {
  std::string text;
  for (const std::string& word : app.remaining(/*recurse=*/true)) {
    const bool option = word.starts_with("-");
    const std::string name = word.substr(0, word.find('='));
    text += (text.empty() ? "" : "\n") + std::string(option ? "unknown option \"" : "not expected: \"") +
            (option ? name : word) + "\"" + (option ? trainer::did_you_mean(name, options_of(app)) : "");
  }
  return text + "; `trainer COMMAND --help` lists the options of a command";
}

std::string usage_text(const CLI::Error& error) {
  return error.what() + std::string("; run with --help for more information");
}

/// A message about the command that does not exist; empty when that is not what is wrong.
std::string unknown_command(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  for (const std::string& left : app.remaining())
    if (!left.starts_with("-"))
      return "unknown command \"" + left + "\"" + trainer::did_you_mean(left, names) + "; `trainer --help` lists all";
  return {};
}

int run(int argc, char** argv, trainer::cli::Common& common) {
  CLI::App app{"Trains image diffusion transformers from TOML recipes.", "trainer"};
  app.set_version_flag("--version", TRAINER_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  app.footer(
      "Example: trainer run recipes/quickstart.toml\n`trainer COMMAND --help` shows an example of each. Results go to "
      "stdout, progress and errors to stderr.");
  app.add_option("--libtorch", common.libtorch, "LibTorch " TRAINER_TORCH_VERSION " to use")
      ->envname("TRAINER_LIBTORCH");
  app.add_option("--plugin-dir", common.plugin_dirs, "Another folder of plugins (repeatable)")->expected(1)->take_all();
  app.add_flag("--json", common.json, "Results as JSON");
  app.add_flag("--quiet", common.quiet, "Warnings and errors only");
  for (auto* add :
       {trainer::cli::add_run, trainer::cli::add_check, trainer::cli::add_plan, trainer::cli::add_prove,
        trainer::cli::add_cache, trainer::cli::add_sample, trainer::cli::add_export, trainer::cli::add_inspect,
        trainer::cli::add_plugins, trainer::cli::add_explain, trainer::cli::add_doctor})
    add(app, common);
  try {
    app.parse(argc, argv);
  } catch (const CLI::RequiredError& error) {
    // A misspelt command is left over as a positional; "a subcommand is required" would not help.
    const std::string unknown = unknown_command(app);
    throw trainer::Error(ExitCode::usage, unknown.empty() ? usage_text(error) : unknown);
  } catch (const CLI::ExtrasError&) {
    throw trainer::Error(ExitCode::usage, unknown_words(app));
  } catch (const CLI::Success& asked) {  // --help or --version
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    throw trainer::Error(ExitCode::usage, usage_text(error));
  }
  if (common.quiet) trainer::set_log_level(trainer::LogLevel::warning);
  return common.action();
}

}  // namespace

int main(int argc, char** argv) {
  trainer::cli::open_closed_streams();
  ::signal(SIGXFSZ, SIG_IGN);  // a limit on the size of files becomes a write error, which names the file
  trainer::cli::Common common;
  const auto report = [&](ExitCode code, const std::string& text) {
    return trainer::report_error(code, text, common.json);
  };
  try {
    return trainer::cli::after_output(run(argc, argv, common));
  } catch (const trainer::Error& error) {
    return report(error.exit_code(), error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    const trainer::Error told = trainer::error_of(error);
    return report(told.exit_code(), told.what());
  } catch (const std::exception& error) {
    return report(ExitCode::failed, error.what());
  }
}
