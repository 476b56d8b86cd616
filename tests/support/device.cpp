/// @file See device.hpp.
#include <ATen/Context.h>
#include <dlfcn.h>
#include <assembly/device.hpp>
#include <support/device.hpp>

#include <array>
#include <cstdlib>

namespace trainer::testing {

at::Device open_device(const std::string& name, const std::string& where) {
  const std::array<std::string, 1> names{name};
  const std::vector<at::Device> devices = assembly::parse_devices(names, where);
  Dl_info torch{};
  dladdr(reinterpret_cast<const void*>(&at::globalContext), &torch);
  assembly::open_devices(devices, {.libtorch = std::filesystem::canonical(torch.dli_fname).parent_path(), .nccl = {}});
  return devices.front();
}

at::Device test_device() {
  static const at::Device device = [] {
    const char* name = std::getenv("TRAINER_TEST_DEVICE");
    const at::Device opened = open_device(name == nullptr || *name == '\0' ? "cpu" : name, "TRAINER_TEST_DEVICE");
    // Only warns: what has no deterministic form is found by the comparisons.
    if (opened.is_cuda()) at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    return opened;
  }();
  return device;
}

}  // namespace trainer::testing
