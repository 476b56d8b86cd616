/// @file The engine's C entry: everything that needs LibTorch, behind one function.
#include <c10/core/AutogradState.h>
#include <c10/util/Exception.h>
#include <engine/engine.h>
#include <base/device_error.hpp>
#include <base/files.hpp>
#include <base/heap.hpp>
#include <base/log.hpp>
#include <base/report.hpp>
#include <data/image.hpp>
#include <kernels/cpu.hpp>
#include <planner/byte_counter.hpp>
#include <recipe/locate.hpp>
#include <engine/commands.hpp>
#include <trainer/sdk/error.hpp>

#include <cstring>
#include <map>

namespace trainer::engine {
namespace {

/// Warnings of LibTorch and of plugins (TORCH_WARN) read like ours.
class LoggedWarnings final : public c10::WarningHandler {
  void process(const c10::Warning& warning) override { log_warning(warning.msg()); }
};

/// A level of the kernels that cannot be used is an error before anything is loaded or written.
void require_cpu_level() {
  try {
    kernels::cpu_kernels();
  } catch (const std::invalid_argument& error) {
    throw Error(ExitCode::usage, error.what());
  }
}

int dispatch(const std::string& command, const assembly::Request& request) {
  static const std::map<std::string, int (*)(const assembly::Request&)> commands{
      {"run", command_run},       {"check", command_check},     {"cache", command_cache},
      {"sample", command_sample}, {"inspect", command_inspect}, {"plugins_check", command_plugins_check},
      {"doctor", command_doctor}, {"prove", command_prove},     {"plan", command_plan},
      {"export", command_export}, {"explain", command_explain},
  };
  if (request.quiet) set_log_level(LogLevel::warning);
  require_cpu_level();
  // One host thread issues everything: backward runs in sequence order, recomputes included.
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  data::set_image_module(request.images);
  planner::install_byte_counter();
  keep_freed_memory();
  return commands.at(command)(request);
}

/// The message of a LibTorch error, without its C++ stack.
std::string short_text(const c10::Error& error) {
  std::string text = error.what_without_backtrace();
  return text.substr(0, text.find("\nException raised from"));
}

}  // namespace
}  // namespace trainer::engine

extern "C" __attribute__((visibility("default"))) int trainer_engine_call(const char* version, const char* command,
                                                                          const char* request) {
  using namespace trainer;
  using namespace trainer::engine;
  assembly::Request parsed;
  const auto report = [&](ExitCode code, const std::string& text) { return report_error(code, text, parsed.json); };
  if (std::strcmp(version, TRAINER_VERSION) != 0)
    return report(ExitCode::unavailable, std::string("this program is version ") + version + ", its engine is " +
                                             TRAINER_VERSION + "; install both anew");
  LoggedWarnings warnings;
  const c10::WarningUtils::WarningHandlerGuard logged(&warnings);
  try {
    parsed = assembly::parse_request(request);
    return dispatch(command, parsed);
  } catch (const Error& error) {
    const bool of_recipe = error.exit_code() == ExitCode::bad_recipe;
    return report(error.exit_code(), of_recipe ? recipe::with_position(error.what(), parsed.recipe, parsed.overrides)
                                               : std::string(error.what()));
  } catch (const c10::OutOfMemoryError& error) {
    return report(ExitCode::out_of_memory, short_text(error) + advice_for(ExitCode::out_of_memory));
  } catch (const c10::AcceleratorError& error) {
    const ExitCode code = exit_code_of_device_error(error.get_error_code());
    return report(code, short_text(error) + advice_for(code));
  } catch (const c10::Error& error) {
    const bool memory = says_out_of_memory(error.what_without_backtrace());
    return memory ? report(ExitCode::out_of_memory,
                           "the machine is out of memory: " + short_text(error) + advice_for(ExitCode::out_of_memory))
                  : report(ExitCode::failed, short_text(error));
  } catch (const std::bad_alloc&) {
    return report(ExitCode::out_of_memory,
                  std::string("the machine is out of memory") + advice_for(ExitCode::out_of_memory));
  } catch (const std::filesystem::filesystem_error& error) {
    const Error told = error_of(error);
    return report(told.exit_code(), told.what());
  } catch (const std::exception& error) {
    return report(ExitCode::failed, error.what());
  }
}
