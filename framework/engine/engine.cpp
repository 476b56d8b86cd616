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
#include <engine/commands.hpp>
#include <kernels/cpu.hpp>
#include <nlohmann/json.hpp>
#include <planner/byte_counter.hpp>
#include <recipe/locate.hpp>
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

/// Reads the request of one command and runs it.
template <typename Asked>
int answer(int (*command)(const Asked&), const nlohmann::json& json) {
  Asked request;
  read(json, request);
  return command(request);
}

int dispatch(const std::string& command, const nlohmann::json& json) {
  using Json = nlohmann::json;
  static const std::map<std::string, int (*)(const Json&)> commands{
      {"run", [](const Json& j) { return answer(command_run, j); }},
      {"check", [](const Json& j) { return answer(command_check, j); }},
      {"cache", [](const Json& j) { return answer(command_cache, j); }},
      {"sample", [](const Json& j) { return answer(command_sample, j); }},
      {"inspect", [](const Json& j) { return answer(command_inspect, j); }},
      {"plugins_check", [](const Json& j) { return answer(command_plugins_check, j); }},
      {"doctor", [](const Json& j) { return answer(command_doctor, j); }},
      {"prove", [](const Json& j) { return answer(command_prove, j); }},
      {"plan", [](const Json& j) { return answer(command_plan, j); }},
      {"export", [](const Json& j) { return answer(command_export, j); }},
      {"explain", [](const Json& j) { return answer(command_explain, j); }},
  };
  Request every;
  read(json, every);
  if (every.quiet) set_log_level(LogLevel::warning);
  require_cpu_level();
  // One host thread issues everything: backward runs in sequence order, recomputes included.
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  data::set_image_module(every.images);
  planner::install_byte_counter();
  keep_freed_memory();
  return commands.at(command)(json);
}

/// The places of the recipe's keys; none for a command without recipe.
recipe::Positions positions_in(const nlohmann::json& json) {
  const auto recipe = json.find("recipe");
  return recipe == json.end() ? recipe::Positions{} : recipe::parse_resolved(*recipe).positions;
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
  nlohmann::json json;
  const auto report = [&](ExitCode code, const std::string& text) {
    return report_error(code, text, json.is_object() && json.value("json", false));
  };
  if (std::strcmp(version, TRAINER_VERSION) != 0)
    return report(ExitCode::unavailable, std::string("this program is version ") + version + ", its engine is " +
                                             TRAINER_VERSION + "; install both anew");
  LoggedWarnings warnings;
  const c10::WarningUtils::WarningHandlerGuard logged(&warnings);
  try {
    json = nlohmann::json::parse(request);
    return dispatch(command, json);
  } catch (const Error& error) {
    const bool of_recipe = error.exit_code() == ExitCode::bad_recipe;
    return report(error.exit_code(),
                  of_recipe ? recipe::with_position(error.what(), positions_in(json)) : std::string(error.what()));
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
