/// @file The front: command line and recipe checking, without LibTorch. Commands that need it call the engine.
#include <base/log.hpp>
#include <cli/commands.hpp>
#include <trainer/sdk/error.hpp>

#include <cstdio>

namespace {

using trainer::ExitCode;

int run(int argc, char** argv) {
  CLI::App app{"Trains image diffusion transformers from TOML recipes.", "trainer"};
  app.set_version_flag("--version", TRAINER_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  app.footer("`trainer COMMAND --help` shows an example of each. Results go to stdout, progress and errors to stderr.");
  trainer::cli::Common common;
  app.add_option("--libtorch", common.libtorch, "LibTorch " TRAINER_TORCH_VERSION " to use")->envname("TRAINER_LIBTORCH");
  app.add_option("--plugin-dir", common.plugin_dirs, "Another folder of plugins (repeatable)")->expected(1)->take_all();
  app.add_flag("--json", common.json, "Results as JSON");
  app.add_flag("--quiet", common.quiet, "Warnings and errors only");
  for (auto* add : {trainer::cli::add_run, trainer::cli::add_check, trainer::cli::add_cache, trainer::cli::add_sample,
                    trainer::cli::add_inspect, trainer::cli::add_plugins, trainer::cli::add_explain,
                    trainer::cli::add_doctor})
    add(app, common);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return static_cast<int>(app.exit(error) == 0 ? ExitCode::done : ExitCode::usage);
  }
  if (common.quiet) trainer::set_log_level(trainer::LogLevel::warning);
  return common.action();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const trainer::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(ExitCode::failed);
  }
}
