/// @file `trainer plugins check FILE`: loads one plugin as a run would, runs its cells of the equivalence matrix, and
/// notes in the user's folder what passed.
#include <assembly/device.hpp>
#include <base/log.hpp>
#include <base/printable.hpp>
#include <engine/commands.hpp>
#include <identity/attestation.hpp>
#include <nlohmann/json.hpp>
#include <plugin/loader.hpp>
#include <prove/conformance_model.hpp>
#include <prove/plugin_cells.hpp>

#include <algorithm>
#include <cstdio>

namespace trainer::engine {
namespace {

using prove::PluginCells;
using prove::Row;

/// The manifest's own folder first: a plugin of the same name elsewhere is another one.
plugin::Loader loader_for(const plugin::Manifest& manifest, const PluginsCheckRequest& request) {
  std::vector<plugin::SearchFolder> folders = request.plugins;
  const auto home = manifest.file.parent_path();
  const bool known =
      std::any_of(folders.begin(), folders.end(), [&](const auto& place) { return place.folder == home; });
  if (!known) folders.insert(folders.begin(), {home, "the plugin's folder"});
  plugin::Loader loader(folders);
  prove::add_conformance_model(loader.registry());
  return loader;
}

std::size_t count(const prove::PluginCells& cells, prove::Row::Verdict verdict) {
  return static_cast<std::size_t>(std::count_if(cells.rows.begin(), cells.rows.end(),
                                                [&](const prove::Row& row) { return row.verdict == verdict; }));
}

std::string summary(const prove::PluginCells& cells) {
  return std::to_string(cells.rows.size()) + " cells: " + std::to_string(count(cells, prove::Row::equal)) +
         " bit-equal, " + std::to_string(count(cells, prove::Row::refused)) + " refused by declaration, " +
         std::to_string(count(cells, prove::Row::idle)) + " with nothing to do, " +
         std::to_string(count(cells, prove::Row::differs)) + " differ, " +
         std::to_string(count(cells, prove::Row::failed)) + " failed";
}

/// The note in the user's folder follows the verdict; a plugin of the program itself needs none.
std::string note(const plugin::Manifest& manifest, const prove::PluginCells& cells) {
  if (cells.rows.empty() || plugin::is_own(manifest)) return {};
  try {
    identity::note_check(manifest, !cells.passed());
    if (!cells.passed()) {
      identity::withdraw({manifest});
      return {};
    }
    return identity::attest({manifest}, summary(cells)).string();
  } catch (const Error& error) {
    log_warning(error.what());
    return {};
  }
}

nlohmann::ordered_json to_json(const prove::Row& row) {
  nlohmann::ordered_json json{{"setting", row.setting},       {"strategies", row.subset},
                              {"against", row.against},       {"passed", row.passed()},
                              {"result", row.result},         {"peak_bytes", row.peak_bytes},
                              {"heavy_operations", row.heavy}};
  if (row.apart)
    json["from_dense_weights"] = {{"loss", row.apart->loss},
                                  {"gradients", row.apart->gradients},
                                  {"gradients_after_steps", row.apart->later},
                                  {"tolerance", row.tolerance.dense}};
  return json;
}

void print_json(const plugin::Manifest& manifest, const std::vector<std::string>& offered,
                const prove::PluginCells& cells, const std::string& attestation) {
  nlohmann::ordered_json json{{"name", manifest.schema.name},
                              {"kind", manifest.schema.kind},
                              {"version", manifest.version},
                              {"offers", offered},
                              {"fingerprint", manifest.fingerprint},
                              {"passed", cells.passed()},
                              {"facts", cells.facts},
                              {"attestation", attestation}};
  json["cells"] = nlohmann::ordered_json::array();
  for (const prove::Row& row : cells.rows) json["cells"].push_back(to_json(row));
  std::printf("%s\n", printable_json(json).c_str());
}

bool ran(const prove::Row& row) { return row.verdict != prove::Row::refused && row.verdict != prove::Row::idle; }

/// The rows that did not run, by their reason, in the order of the table.
void print_reasons(const prove::PluginCells& cells) {
  std::vector<std::pair<std::string, int>> reasons;
  for (const prove::Row& row : cells.rows) {
    if (ran(row)) continue;
    const auto known =
        std::find_if(reasons.begin(), reasons.end(), [&](const auto& one) { return one.first == row.result; });
    known == reasons.end() ? static_cast<void>(reasons.emplace_back(row.result, 1))
                           : static_cast<void>(++known->second);
  }
  if (reasons.empty()) return;
  std::printf("\ncombinations that do not run (--all shows each):\n");
  for (const auto& [reason, count] : reasons) std::printf("  %d %s\n", count, reason.c_str());
}

void print_table(const plugin::Manifest& manifest, const std::vector<std::string>& offered,
                 const prove::PluginCells& cells, const std::string& attestation, bool all) {
  const std::string name = manifest.schema.kind + " \"" + manifest.schema.name + "\"";
  std::printf("%s %s: loads, fingerprint matches, offers:\n", manifest.schema.name.c_str(), manifest.version.c_str());
  for (const std::string& one : offered) std::printf("  %s\n", one.c_str());
  for (const std::string& fact : cells.facts) std::printf("%s\n", fact.c_str());
  if (cells.rows.empty()) {
    std::printf("%s has no cells in the equivalence matrix\n", name.c_str());
    return;
  }
  std::printf("\n%s", prove::table_head().c_str());
  for (const prove::Row& row : cells.rows)
    if (all || ran(row)) std::printf("%s\n", row.text().c_str());
  if (!all) print_reasons(cells);
  std::printf("\n%s\n", summary(cells).c_str());
  if (!cells.passed()) std::printf("NOT PROVEN: %s does not train what the plain run trains.\n", name.c_str());
  if (cells.passed())
    std::printf("PROVEN: %s trains what the plain run trains%s.\n", name.c_str(),
                attestation.empty() ? "" : ("; noted in " + attestation).c_str());
}

}  // namespace

int command_plugins_check(const PluginsCheckRequest& request) {
  plugin::Manifest manifest = plugin::read_manifest(request.file);
  plugin::Loader loader = loader_for(manifest, request);
  for (const plugin::Manifest& found : loader.found().manifests)
    if (found.file == manifest.file) manifest = found;  // knows whether it came with the program
  std::vector<at::Device> devices{at::kCPU};
  if (!request.devices.empty()) {
    assembly::open_device_library(request.devices, "--device", request.plugins);
    devices = assembly::parse_devices(request.devices, "--device");
    assembly::open_devices(devices, request.libraries);
  }
  const std::vector<std::string> offered = loader.load(manifest);
  const prove::PluginCells cells = prove::check_plugin(loader, manifest, request.model, devices);
  const std::string attestation = note(manifest, cells);
  request.json ? print_json(manifest, offered, cells, attestation)
               : print_table(manifest, offered, cells, attestation, request.all);
  return static_cast<int>(cells.passed() ? ExitCode::done : ExitCode::plugin_rejected);
}

}  // namespace trainer::engine
