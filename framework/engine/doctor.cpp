/// @file `trainer doctor`: what this process really loaded.
#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/version.h>
#include <assembly/device.hpp>
#include <assembly/processor.hpp>
#include <base/printable.hpp>
#include <engine/commands.hpp>
#include <nlohmann/json.hpp>
#include <trainer/sdk/error.hpp>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>

namespace trainer::engine {
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

/// What recipes can name in placement.devices here; what stands in CUDA's way goes on one line.
std::vector<std::string> devices(const Request& request) {
  std::vector<std::string> found{"cpu (" + std::to_string(at::get_num_threads()) + " threads)"};
  try {
    const at::Device first(at::kCUDA, 0);
    assembly::open_devices(std::span(&first, 1), request.libraries);
    for (int64_t i = 0; i < at::detail::getCUDAHooks().deviceCount(); ++i) {
      const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(i));
      found.push_back(device.str() + " (" + assembly::cuda_versions(std::span(&device, 1)) + ")");
    }
  } catch (const Error& error) {
    std::string text = error.what();
    for (std::size_t at; (at = text.find('\n')) != std::string::npos;)
      text.replace(at, text.find_first_not_of(" \n", at) - at, "; ");
    found.push_back("no cuda: " + text);
  }
  for (const std::string& kind : assembly::device_kinds(request.plugins)) found.push_back(kind);
  return found;
}

/// Those that decide how fast products are, as /proc/cpuinfo calls them.
std::string instructions_of(const assembly::Processor& processor) {
  std::string text;
  for (const std::string& flag : processor.flags)
    for (const char* start : {"amx", "asimd", "avx", "f16c", "fma", "sse4", "sve"})
      if (flag.starts_with(start)) text += (text.empty() ? "" : " ") + flag;
  return text;
}

nlohmann::ordered_json to_json(const std::vector<assembly::Level>& levels) {
  auto list = nlohmann::ordered_json::array();
  for (const assembly::Level& level : levels)
    list.push_back({{"of", level.of}, {"used", level.used}, {"best", level.best}});
  return list;
}

/// A line of the report: texts as they are, a level as "kernels x86-64-v3 of x86-64-v4".
std::string in_words(const nlohmann::ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object()) return value.dump();
  const std::string used = value.at("used"), best = value.at("best");
  return value.at("of").get<std::string>() + " " + used + (used == best ? "" : " of " + best);
}

}  // namespace

int command_doctor(const Request& request) {
  const char* spin = std::getenv("GOMP_SPINCOUNT");
  const assembly::Processor processor = assembly::this_processor();
  const std::vector<assembly::Level> used = assembly::levels(processor);
  nlohmann::ordered_json facts{{"libtorch", request.libraries.libtorch.string()},
                               {"torch", TORCH_VERSION},
                               {"processor", processor.name},
                               {"instructions", instructions_of(processor)},
                               {"levels", to_json(used)},
                               {"threads", at::get_num_threads()},
                               {"GOMP_SPINCOUNT", spin == nullptr ? "(unset)" : spin},
                               {"mapped", mapped_libraries()}};
  facts["devices"] = devices(request);  // after the libraries: it opens CUDA's
  for (const auto& [folder, origin] : request.plugins)
    facts["plugins"].push_back(folder.string() + " (" + origin + ")");
  facts["slow_because"] = assembly::slow_because(used);
  if (request.json) {
    std::printf("%s\n", printable_json(facts).c_str());
    return 0;
  }
  for (const auto& [name, value] : facts.items())
    if (value.is_array())
      for (const auto& item : value) std::printf("%s %s\n", name.c_str(), in_words(item).c_str());
    else
      std::printf("%s %s\n", name.c_str(), in_words(value).c_str());
  return 0;
}

}  // namespace trainer::engine
