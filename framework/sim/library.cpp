/// @file The simulated devices as a device library (assembly/device.hpp), opened when a recipe names "sim:N".
#include <sim/sim.hpp>

#include <exception>
#include <string>

/// `memory`: bytes of each device (placement.simulated); with a count of 0 there are four without a limit.
extern "C" __attribute__((visibility("default"))) const char* trainer_register_devices(const int64_t* memory,
                                                                                       int count) noexcept {
  static std::string problem;
  try {
    constexpr int kDevices = 4;
    trainer::sim::init(count > 0 ? count : kDevices);
    trainer::sim::set_poison(true);
    for (int i = 0; i < count; ++i) trainer::sim::set_capacity(i, memory[i]);
    return nullptr;
  } catch (const std::exception& error) {
    problem = error.what();
    return problem.c_str();
  }
}
