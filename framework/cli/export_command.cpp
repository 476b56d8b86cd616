#include <cli/commands.hpp>
#include <cli/engine_loader.hpp>

namespace trainer::cli {

void add_export(CLI::App& app, Common& common) {
  static std::string file, format, output, model;
  static bool force = false;
  CLI::App* command = app.add_subcommand("export", "Write a LoRA in the form that another program reads");
  command->add_option("LORA", file, "LoRA file in any format (see docs/lora-formats.md)")->required();
  command->add_option("--format", format, "diffusers, comfyui, kohya, or what else the model's plugin knows")
      ->required();
  command->add_option("--output", output, "File to write; without it NAME-FORMAT.safetensors beside LORA");
  command->add_option("--model", model, "Model plugin whose LoRA it is; without it the one that knows all its tensors");
  command->add_flag("--force", force, "Replace the output if it exists");
  command->footer("Example: trainer export runs/quickstart/lora/quickstart-800.safetensors --format kohya");
  command->callback([&common] {
    common.action = [&common] {
      return call_engine("export",
                         {{"file", file},
                          {"format", format},
                          {"output", output},
                          {"model", model},
                          {"force", force},
                          {"json", common.json}},
                         find_layout(common.plugin_dirs), common.libtorch);
    };
  });
}

}  // namespace trainer::cli
