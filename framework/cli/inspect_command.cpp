#include <cli/commands.hpp>
#include <cli/engine_loader.hpp>

namespace trainer::cli {

void add_inspect(CLI::App& app, Common& common) {
  static std::string file;
  static bool values = false;
  CLI::App* command = app.add_subcommand("inspect", "Say what a weight file, LoRA, checkpoint or model folder is");
  command->add_option("FILE", file, "safetensors file, model folder or checkpoint folder")->required();
  command->add_flag("--values", values, "Read all values and say whether they are finite (done for files below 1 GB)");
  command->footer("Example: trainer inspect runs/quickstart/lora/quickstart-800.safetensors");
  command->callback([&common] {
    common.action = [&common] {
      return call_engine("inspect", {{"file", file}, {"values", values}, {"json", common.json}},
                         find_layout(common.plugin_dirs), common.libtorch);
    };
  });
}

}  // namespace trainer::cli
