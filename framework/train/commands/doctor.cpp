/// @file `trainer doctor`: what this process really loaded.
#include <ATen/Parallel.h>
#include <torch/version.h>
#include <base/printable.hpp>
#include <nlohmann/json.hpp>
#include <train/commands/commands.hpp>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>

namespace trainer::train {
namespace {

/// The libraries of this process that decide how it computes.
std::vector<std::string> mapped_libraries() {
  std::set<std::string> files;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (const auto path = line.find('/'); path != std::string::npos) files.insert(line.substr(path));
  std::vector<std::string> found;
  for (const std::string& file : files)
    for (const char* name : {"/libtorch_cpu", "/libc10.", "/libgomp", "/libtrainer", "/libtorch_cuda", "/libvips"})
      if (file.find(name) != std::string::npos) found.push_back(file);
  return found;
}

}  // namespace

int command_doctor(const Request& request) {
  const char* spin = std::getenv("GOMP_SPINCOUNT");
  nlohmann::ordered_json facts{{"libtorch", request.libtorch.string()},
                               {"torch", TORCH_VERSION},
                               {"threads", at::get_num_threads()},
                               {"GOMP_SPINCOUNT", spin == nullptr ? "(unset)" : spin},
                               {"mapped", mapped_libraries()}};
  for (const auto& [folder, origin] : request.plugins)
    facts["plugins"].push_back(folder.string() + " (" + origin + ")");
  if (request.json) {
    std::printf("%s\n", printable_json(facts).c_str());
    return 0;
  }
  const auto text = [](const nlohmann::ordered_json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  for (const auto& [name, value] : facts.items())
    if (value.is_array())
      for (const auto& item : value) std::printf("%s %s\n", name.c_str(), text(item).c_str());
    else
      std::printf("%s %s\n", name.c_str(), text(value).c_str());
  return 0;
}

}  // namespace trainer::train
