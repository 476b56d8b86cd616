#include <base/printable.hpp>
#include <cli/commands.hpp>
#include <cli/engine_loader.hpp>
#include <plugin/match.hpp>
#include <trainer/sdk/names.hpp>

#include <cstdio>

namespace trainer::cli {
namespace {

/// Why it cannot be used, or "".
std::string reason_of(const plugin::Found& found, const plugin::Manifest& manifest) {
  for (const plugin::Clash& clash : found.clashes)
    if (clash.kind == manifest.schema.kind && clash.name == manifest.schema.name) return clash.text;
  return plugin::unusable(manifest, {plugin::kApi, TRAINER_TORCH_VERSION, TRAINER_FINGERPRINT});
}

int list(const Common& common) {
  const plugin::Found found = plugin::find_manifests(find_layout(common.plugin_dirs).plugins);
  nlohmann::json rows = nlohmann::json::array();
  bool all_usable = true;
  for (const plugin::Manifest& manifest : found.manifests) {
    const recipe::ComponentSchema& schema = manifest.schema;
    const std::string reason = reason_of(found, manifest);
    all_usable &= reason.empty();
    if (common.json)
      rows.push_back({{"name", schema.name},
                      {"kind", schema.kind},
                      {"version", manifest.version},
                      {"torch", manifest.torch},
                      {"summary", schema.summary},
                      {"library", manifest.library.string()},
                      {"usable", reason.empty()},
                      {"reason", reason}});
    else
      std::printf("%-20s %-14s %-8s %s\n", schema.name.c_str(), schema.kind.c_str(), manifest.version.c_str(),
                  printable(reason.empty() ? schema.summary : "CANNOT BE USED: " + reason).c_str());
  }
  if (common.json) std::printf("%s\n", printable_json(rows).c_str());
  for (const std::string& problem : found.problems)
    std::fprintf(stderr, "not readable: %s\n", printable_lines(problem).c_str());
  return all_usable && found.problems.empty() ? 0 : static_cast<int>(ExitCode::plugin_rejected);
}

/// The manifest that is meant: a file, or the name of a component of the search path.
std::string manifest_file(const std::string& given, const Layout& layout) {
  std::error_code unreadable;
  if (std::filesystem::exists(given, unreadable)) return given;
  const plugin::Found found = plugin::find_manifests(layout.plugins);
  std::vector<std::string> names;
  for (const plugin::Manifest& manifest : found.manifests) {
    if (manifest.schema.name == given) return manifest.file.string();
    names.push_back(manifest.schema.name);
  }
  throw Error(ExitCode::not_found, "there is no file \"" + given + "\", and no plugin of that name in the search path" +
                                       did_you_mean(given, names) + "; `trainer plugins list` shows them");
}

}  // namespace

void add_plugins(CLI::App& app, Common& common) {
  static std::string file, model;
  static std::vector<std::string> devices;
  static bool all = false;
  CLI::App* command = app.add_subcommand("plugins", "List or check plugins")->require_subcommand(1);
  command->footer("Example: trainer plugins list");
  CLI::App* listing = command->add_subcommand(
      "list", "What the search path holds and whether it can be used, from manifests; opens nothing");
  listing->footer("Example: trainer plugins list --plugin-dir build/my_plugin");
  listing->callback([&common] { common.action = [&common] { return list(common); }; });
  CLI::App* check =
      command->add_subcommand("check", "Load one plugin and prove that it trains what the plain run trains");
  check->add_option("FILE", file, "manifest (NAME.plugin.toml), or a name of `trainer plugins list`")->required();
  check->add_option("--model", model, "Folder with weights, for a model plugin that offers no miniature of itself");
  check->add_option("--device", devices, "Device to run on (cpu); for a placement two or more, e.g. cuda:0 cuda:1");
  check->add_flag("--all", all, "Print the rows of combinations that refuse each other, too, instead of their number");
  check->footer(
      "Runs the plugin with every subset of the program's memory strategies, dtypes, trained parts and "
      "micro-batches on a small model, prints the table, and notes a pass in the user's configuration folder, "
      "so that `trainer run` does not warn.\nExample: trainer plugins check my_plugin.plugin.toml");
  check->callback([&common] {
    common.action = [&common] {
      const Layout layout = find_layout(common.plugin_dirs);
      return call_engine("plugins_check",
                         {{"file", manifest_file(file, layout)},
                          {"model", model},
                          {"devices", devices},
                          {"all", all},
                          {"json", common.json}},
                         layout, common.libtorch);
    };
  });
}

}  // namespace trainer::cli
