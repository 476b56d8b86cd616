#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <assembly/device.hpp>
#include <base/log.hpp>
#include <plugin/library.hpp>
#include <plugin/permissions.hpp>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>

namespace trainer::assembly {

namespace {

constexpr std::string_view kLibraryEnd = ".device.so";

/// The kinds of devices that have a library in these folders, each with the first one found.
std::map<std::string, std::filesystem::path> device_libraries(std::span<const plugin::SearchFolder> folders) {
  std::map<std::string, std::filesystem::path> found;
  std::error_code missing;
  for (const auto& [folder, origin] : folders)
    for (const auto& entry : std::filesystem::directory_iterator(folder, missing))
      if (const std::string name = entry.path().filename(); name.ends_with(kLibraryEnd))
        found.emplace(name.substr(0, name.size() - kLibraryEnd.size()), entry.path());
  return found;
}

std::string kind_of_device(const std::string& device) { return device.substr(0, device.find(':')); }

void register_devices(const std::filesystem::path& library, std::span<const int64_t> memory) {
  const std::string name = library.string() + ": ";
  try {
    plugin::require_safe_permissions(library.filename(), library);
    const auto registered = plugin::find_function<const char* (*)(const int64_t*, int)>(
        plugin::open(library, plugin::Scope::local), "trainer_register_devices");
    if (registered == nullptr) throw Error(ExitCode::unavailable, name + "it has no trainer_register_devices");
    if (const char* problem = registered(memory.data(), static_cast<int>(memory.size())); problem != nullptr)
      throw Error(ExitCode::unavailable, name + problem);
  } catch (const plugin::OpenError& error) {
    throw Error(ExitCode::unavailable, name + error.what());
  }
}

/// How many devices of an accelerator's kind this process sees.
int64_t device_count(at::DeviceType type) {
  return type == at::kCUDA ? at::detail::getCUDAHooks().deviceCount() : c10::impl::VirtualGuardImpl(type).deviceCount();
}

/// LibTorch's CUDA part, once it is open.
const void*& cuda_library() {
  static const void* library = nullptr;
  return library;
}

/// cudaDeviceProp begins with the name and the UUID (CUDA 10 to 13); its length is another in every version.
struct alignas(64) Properties {
  std::array<char, 256> name;
  std::array<unsigned char, 16> uuid;
  std::array<char, 16384> rest;
};

/// Of the device that this process calls `index`; null when CUDA does not tell.
std::unique_ptr<Properties> properties_of(int index) {
  if (cuda_library() == nullptr) return nullptr;
  const auto get = plugin::find_function<int (*)(Properties*, int)>(cuda_library(), "cudaGetDeviceProperties");
  auto properties = std::make_unique<Properties>();
  if (get == nullptr || get(properties.get(), index) != 0) return nullptr;
  return properties;
}

/// UUID of the device (or the MIG slice of one) that this process calls `index`; nothing when CUDA does not tell.
std::optional<std::string> cuda_uuid(int index) {
  const auto properties = properties_of(index);
  if (properties == nullptr) return std::nullopt;
  std::string text = "GPU-";
  for (const unsigned char byte : properties->uuid) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", byte);
    text += digits.data();
  }
  return text;
}

at::Device parse_device(const std::string& name, const std::string& where) {
  std::optional<at::Device> device;
  try {
    device = at::Device(name);
  } catch (const c10::Error&) {
    throw Error(ExitCode::bad_recipe, where + ": \"" + name + "\" is no device; use \"cpu\" or \"cuda:N\"");
  }
  if (!device->is_cpu() && !device->has_index()) device->set_index(0);
  if (device->is_privateuseone()) {
    const int64_t count = device_count(device->type());
    if (device->index() >= count)
      throw Error(ExitCode::unavailable,
                  where + ": \"" + name + "\" does not exist, there are " + std::to_string(count) + " of its kind");
  }
  return *device;
}

}  // namespace

std::vector<std::string> device_kinds(std::span<const plugin::SearchFolder> folders) {
  std::vector<std::string> kinds;
  for (const auto& [type, library] : device_libraries(folders)) kinds.push_back(type + ":N (" + library.string() + ")");
  return kinds;
}

void open_device_library(std::span<const std::string> names, const std::string& where,
                         std::span<const plugin::SearchFolder> folders, std::span<const int64_t> memory) {
  static std::string opened;  // LibTorch has one place for such devices
  for (const std::string& name : names) {
    const std::string type = kind_of_device(name);
    if (type == "cpu" || type == "cuda" || type == opened) continue;
    const auto libraries = device_libraries(folders);
    const auto library = libraries.find(type);
    if (library == libraries.end()) {
      std::vector<std::string> valid{"cpu", "cuda"};
      std::string list = "\"cpu\", \"cuda:N\"";
      for (const auto& [other, file] : libraries) {
        valid.push_back(other);
        list += ", \"" + other + ":N\"";
      }
      throw Error(ExitCode::bad_recipe,
                  where + ": \"" + name + "\" is no device" + did_you_mean(type, valid) + "; there are " + list);
    }
    if (!opened.empty())
      throw Error(ExitCode::bad_recipe, where + ": \"" + name + "\" and \"" + opened +
                                            ":N\" are kinds of devices that cannot be used together");
    register_devices(library->second, memory);
    opened = type;
  }
}

std::vector<at::Device> parse_devices(std::span<const std::string> names, const std::string& where) {
  std::vector<at::Device> devices;
  for (const std::string& name : names) devices.push_back(parse_device(name, where));
  return devices;
}

void open_devices(std::span<const at::Device> devices, const Libraries& libraries) {
  int64_t highest = -1;
  for (const at::Device& device : devices)
    if (device.is_cuda()) highest = std::max<int64_t>(highest, device.index());
  if (highest < 0) return;
  const auto library = libraries.libtorch / "libtorch_cuda.so";
  try {
    cuda_library() = plugin::open(library, plugin::Scope::global);
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

distributed::OpenLane open_nccl(const Libraries& libraries) {
  const std::string what = "several processes with CUDA devices exchange gradients by NCCL: ";
  const std::string advice =
      "\n  install the headers of NCCL and CUDA (tools/setup --cuda fetches them) and build the program again";
  if (libraries.nccl.empty() || !std::filesystem::exists(libraries.nccl))
    throw Error(ExitCode::unavailable, what + "this program was built without it (libtrainer_nccl.so)" + advice);
  try {
    const auto open = plugin::find_function<distributed::OpenLane>(plugin::open(libraries.nccl, plugin::Scope::local),
                                                                   "trainer_nccl_lane");
    if (open != nullptr) return open;
  } catch (const plugin::OpenError& error) {
    throw Error(ExitCode::unavailable, what + error.what() + advice);
  }
  throw Error(ExitCode::unavailable, what + libraries.nccl.string() + " has no trainer_nccl_lane" + advice);
}

std::string cuda_versions(std::span<const at::Device> devices) {
  std::string text;
  for (const at::Device& device : devices) {
    if (!device.is_cuda()) continue;
    if (text.empty())
      for (const auto& [what, function] :
           {std::pair{"runtime ", "cudaRuntimeGetVersion"}, {"driver ", "cudaDriverGetVersion"}}) {
        int version = 0;
        const auto get = plugin::find_function<int (*)(int*)>(cuda_library(), function);
        if (get != nullptr && get(&version) == 0)
          text += what + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10) + ", ";
      }
    const auto properties = properties_of(device.index());
    text += (text.empty() || text.ends_with(", ") ? "" : ", ") +
            (properties == nullptr ? device.str() : std::string(properties->name.data()));
  }
  return text;
}

std::optional<double> capability_of(at::Device device) {
  if (!device.is_cuda() || cuda_library() == nullptr) return std::nullopt;
  const auto get = plugin::find_function<int (*)(int*, int, int)>(cuda_library(), "cudaDeviceGetAttribute");
  constexpr int kMajor = 75, kMinor = 76;  // cudaDevAttrComputeCapabilityMajor, -Minor
  int major = 0, minor = 0;
  if (get == nullptr || get(&major, kMajor, device.index()) != 0 || get(&minor, kMinor, device.index()) != 0)
    return std::nullopt;
  return major + minor / 10.0;
}

void require_capability(const std::string& component, double least, at::Device device, std::optional<double> has) {
  constexpr double kRounding = 0.01;
  if (!has || *has > least - kRounding) return;
  const auto text = [](double number) {
    std::array<char, 16> digits{};
    std::snprintf(digits.data(), digits.size(), "%.1f", number);
    return std::string(digits.data());
  };
  throw Error(ExitCode::unavailable, component + " needs CUDA devices of compute capability " + text(least) +
                                         " or newer, and " + device.str() + " has " + text(*has) +
                                         "; leave it out, take another strategy, or another device");
}

std::vector<std::string> identities_of(std::span<const at::Device> devices) {
  std::vector<std::string> identities;
  for (const at::Device& device : devices) {
    if (device.is_cpu()) continue;
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    const std::string as_seen =
        device.str() +
        (device.is_cuda() && visible != nullptr ? " of CUDA_VISIBLE_DEVICES=" + std::string(visible) : std::string());
    identities.push_back(device.is_cuda() ? cuda_uuid(device.index()).value_or(as_seen) : as_seen);
  }
  return identities;
}

std::vector<at::Device> devices_of_process(std::vector<at::Device> devices, std::size_t each,
                                           const distributed::Place& place) {
  for (at::Device& device : devices) {
    if (device.is_cpu()) continue;
    const int64_t count = device_count(device.type());
    if (count <= static_cast<int64_t>(each)) continue;
    const int64_t index = device.index() + static_cast<int64_t>(each) * place.local_rank;
    if (index >= count)
      throw Error(ExitCode::unavailable, "placement.devices: process " + std::to_string(place.local_rank + 1) +
                                             " of this machine (rank " + std::to_string(place.rank) + ") would use " +
                                             device.str() + " shifted to " + std::to_string(index) +
                                             ", but there are " + std::to_string(count) +
                                             " devices; start fewer processes on a machine");
    device.set_index(static_cast<at::DeviceIndex>(index));
  }
  return devices;
}

std::string types_of(const std::vector<at::Device>& devices) {
  std::set<std::string> types;
  for (const at::Device device : devices) types.insert(c10::DeviceTypeName(device.type(), /*lower_case=*/true));
  std::string text;
  for (const std::string& type : types) text += (text.empty() ? "" : ", ") + type;
  return text;
}

}  // namespace trainer::assembly
