/// @file `trainer doctor`: what this process really loaded.
#include <ATen/Parallel.h>
#include <train/commands.hpp>
#include <torch/version.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>

namespace trainer::train {

int command_doctor(const Request& request) {
  const char* spin = std::getenv("GOMP_SPINCOUNT");
  std::printf("libtorch %s\ntorch %s\nthreads %d\nGOMP_SPINCOUNT %s\n", request.libtorch.c_str(), TORCH_VERSION,
              at::get_num_threads(), spin == nullptr ? "(unset)" : spin);
  std::set<std::string> files;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (const auto path = line.find('/'); path != std::string::npos) files.insert(line.substr(path));
  for (const std::string& file : files)
    for (const char* name : {"/libtorch_cpu", "/libc10.", "/libgomp", "/libtrainer", "/libtorch_cuda", "/libvips"})
      if (file.find(name) != std::string::npos) std::printf("mapped %s\n", file.c_str());
  for (const auto& [folder, origin] : request.plugins) std::printf("plugins %s (%s)\n", folder.c_str(), origin.c_str());
  return 0;
}

}  // namespace trainer::train
