/// @file `trainer plugins check FILE`: loads one plugin as a run would, and says what it offers.
#include <nlohmann/json.hpp>
#include <plugin/loader.hpp>
#include <train/commands.hpp>

#include <cstdio>

namespace trainer::train {

int command_plugins_check(const Request& request) {
  const plugin::Manifest manifest = plugin::read_manifest(request.file);
  plugin::Loader loader({});
  const std::vector<std::string> offered = loader.load(manifest);
  if (request.json) {
    std::printf("%s\n", nlohmann::json{{"name", manifest.schema.name},
                                       {"kind", manifest.schema.kind},
                                       {"version", manifest.version},
                                       {"offers", offered},
                                       {"fingerprint", manifest.fingerprint}}
                            .dump(2)
                            .c_str());
    return 0;
  }
  std::printf("%s %s: loads, fingerprint matches, offers:\n", manifest.schema.name.c_str(), manifest.version.c_str());
  for (const std::string& name : offered) std::printf("  %s\n", name.c_str());
  return 0;
}

}  // namespace trainer::train
