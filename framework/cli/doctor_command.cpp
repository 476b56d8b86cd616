#include <cli/commands.hpp>
#include <cli/engine_loader.hpp>

namespace trainer::cli {

void add_doctor(CLI::App& app, Common& common) {
  CLI::App* command = app.add_subcommand(
      "doctor", "Show which LibTorch, libraries, devices and instructions are really used, and what slows them");
  command->footer("Example: trainer doctor");
  command->callback([&common] {
    common.action = [&common] {
      return call_engine("doctor", {{"json", common.json}}, find_layout(common.plugin_dirs), common.libtorch);
    };
  });
}

}  // namespace trainer::cli
