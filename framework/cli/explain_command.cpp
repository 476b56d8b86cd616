#include <cli/commands.hpp>
#include <cli/layout.hpp>
#include <nlohmann/json.hpp>
#include <recipe/reference.hpp>

#include <cstdio>

namespace trainer::cli {

void add_explain(CLI::App& app, Common& common) {
  static std::string key;
  CLI::App* command = app.add_subcommand("explain", "Explain a recipe key or section: type, default, range, meaning");
  command->add_option("KEY", key, "e.g. optimizer.lr, optimizer or memory.full_checkpointing")->required();
  command->footer("Example: trainer explain objective.timesteps.shift");
  command->callback([&common] {
    common.action = [&common] {
      const auto schemas = plugin::schemas(plugin::find_manifests(find_layout(common.plugin_dirs).plugins));
      const std::string text = recipe::explain(key, schemas);
      if (common.json)
        std::printf("%s\n", nlohmann::ordered_json{{"key", key}, {"text", text}}.dump(2).c_str());
      else
        std::printf("%s", text.c_str());
      return 0;
    };
  });
}

}  // namespace trainer::cli
