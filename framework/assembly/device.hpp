/// @file Devices named in recipes: parsing, and LibTorch's CUDA part opened on demand.
#pragma once

#include <distributed/environment.hpp>
#include <distributed/lane.hpp>
#include <plugin/manifest.hpp>

#include <c10/core/Device.h>

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trainer::assembly {

/// Libraries that are opened when devices need them.
struct Libraries {
  std::filesystem::path libtorch;  ///< folder of LibTorch's libraries
  std::filesystem::path nccl;      ///< may not be there
};

/// Devices of another kind than the host and CUDA come from a device library: TYPE.device.so in a plugin folder, which
/// registers them with LibTorch (PrivateUse1). Ours is that of the simulated devices (sim/sim.hpp). It exports
///   extern "C" const char* trainer_register_devices(const int64_t* memory, int count);
/// which returns null, or what went wrong; `memory` are the bytes of each device that placement.simulated gives.
/// Opens the library that one of the names needs, once in a process. Throws Error: bad_recipe for a kind that has none,
/// or for two kinds; unavailable for a library that cannot be used. `where` names the key.
void open_device_library(std::span<const std::string> names, const std::string& where,
                         std::span<const plugin::SearchFolder> folders, std::span<const int64_t> memory = {});

/// "sim:N (file)" for each kind that has a library in these folders; opens none.
std::vector<std::string> device_kinds(std::span<const plugin::SearchFolder> folders);

/// "cpu", "cuda", "cuda:1" -> devices, and those of the device library that was opened. Throws Error (bad_recipe) for
/// anything else, (unavailable) for a device that the library does not have; `where` names the key.
std::vector<at::Device> parse_devices(std::span<const std::string> names, const std::string& where);

/// When a CUDA device is among them: opens libtorch_cuda.so from LibTorch's folder, initialises the driver (before any
/// plugin is opened), and checks that the indices exist. Throws Error (unavailable), saying whether the CUDA part is
/// not installed or has no usable device.
void open_devices(std::span<const at::Device> devices, const Libraries& libraries);

/// What exchanges tensors on CUDA devices among processes: NCCL, from a library of ours that exists where the program
/// was built with NCCL's headers. After open_devices. Throws Error (unavailable) when it is not there or cannot be
/// opened.
distributed::OpenLane open_nccl(const Libraries& libraries);

/// Versions of CUDA's library and driver and the names of these devices; empty when none is of CUDA. What they compute
/// may differ with each.
std::string cuda_versions(std::span<const at::Device> devices);

/// Compute capability of a CUDA device, 8.9 for example; nothing for other devices, or when CUDA does not tell. After
/// open_devices.
std::optional<double> capability_of(at::Device device);

/// Throws Error (unavailable) where a component ("memory.strategies: \"fp8_w8a8\"") needs more than a device has.
void require_capability(const std::string& component, double least, at::Device device, std::optional<double> has);

/// What tells the devices of a machine apart, whatever a process calls them: of CUDA devices (and their MIG slices) the
/// driver's UUID. The host is not among them.
std::vector<std::string> identities_of(std::span<const at::Device> devices);

/// The devices of one of several processes on a machine, when `devices` are those of the first one and `each` is how
/// many devices a process has: "cuda:0" is "cuda:2" in the third, and of {"cuda:0", "cuda:1"} the second has {"cuda:2",
/// "cuda:3"}. Where the process sees no more devices than one needs, the scheduler has given it its own, and nothing is
/// shifted. Call after open_devices. Throws Error (unavailable) when there are not enough.
std::vector<at::Device> devices_of_process(std::vector<at::Device> devices, std::size_t each,
                                           const distributed::Place& place);

/// "cpu", or "cuda": of which kinds the devices are.
std::string types_of(const std::vector<at::Device>& devices);

}  // namespace trainer::assembly
