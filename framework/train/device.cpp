#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <base/log.hpp>
#include <plugin/library.hpp>
#include <train/device.hpp>
#include <trainer/sdk/error.hpp>

namespace trainer::train {

std::vector<at::Device> parse_devices(std::span<const std::string> names, const std::string& where) {
  std::vector<at::Device> devices;
  for (const std::string& name : names) {
    try {
      at::Device device(name);
      if (device.is_cuda() && !device.has_index()) device.set_index(0);
      devices.push_back(device);
    } catch (const c10::Error&) {
      throw Error(ExitCode::bad_recipe, where + ": \"" + name + "\" is no device; use \"cpu\" or \"cuda:N\"");
    }
    if (!devices.back().is_cuda() && !devices.back().is_cpu())
      throw Error(ExitCode::bad_recipe, where + ": \"" + name + "\" is not supported; use \"cpu\" or \"cuda:N\"");
  }
  return devices;
}

void open_devices(std::span<const at::Device> devices, const Request& request) {
  int64_t highest = -1;
  for (const at::Device& device : devices)
    if (device.is_cuda()) highest = std::max<int64_t>(highest, device.index());
  if (highest < 0) return;
  const auto library = request.libtorch / "libtorch_cuda.so";
  try {
    plugin::open(library, plugin::Scope::global);
  } catch (const plugin::OpenError& error) {
    throw Error(ExitCode::unavailable, "the CUDA part of LibTorch is not installed: " + std::string(error.what()) +
                                           "\n  run: tools/setup --cuda");
  }
  try {
    at::globalContext().lazyInitDevice(at::kCUDA);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    throw Error(ExitCode::unavailable, "no usable CUDA device: " + text.substr(0, text.find('\n')));
  }
  const int64_t count = at::detail::getCUDAHooks().deviceCount();
  if (highest >= count)
    throw Error(ExitCode::unavailable, "placement.devices: \"cuda:" + std::to_string(highest) +
                                           "\" does not exist, this machine has " + std::to_string(count) +
                                           " CUDA device(s)");
  log_info("CUDA opened from " + library.string());
}

}  // namespace trainer::train
