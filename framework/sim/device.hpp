/// @file What LibTorch asks of an accelerator: current device, streams, events, generators.
#pragma once

#include <c10/core/Device.h>

#include <optional>

namespace at {
struct Generator;
}

namespace trainer::sim {

/// Registers guard and hooks for `count` devices.
void install_devices(int count);
/// The device, the current one where it has no index. Throws c10::Error for an index that is not there.
c10::Device resolve(std::optional<c10::Device> device);

/// The CPU generator behind the default generator of a device.
at::Generator default_cpu_generator(c10::DeviceIndex index);
/// The CPU generator behind a generator of `device`. Throws c10::Error for one of another device.
at::Generator cpu_generator(const at::Generator& generator, c10::Device device);

}  // namespace trainer::sim
