/// @file The simulated devices as a device library (assembly/device.hpp): opened when a recipe names "sim:N" and
/// TRAINER_DEVICE_LIBRARY names this file. TRAINER_SIM_CAPACITIES, e.g. "1000000,0": bytes of each device, 0 for no
/// limit; as many devices as it has numbers, 4 without it.
#include <cstdlib>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

#include "sim.hpp"

extern "C" __attribute__((visibility("default"))) const char* trainer_register_devices() noexcept {
  static std::string problem;
  try {
    constexpr int kDevices = 4;
    std::vector<int64_t> capacities(kDevices, 0);
    if (const char* text = std::getenv("TRAINER_SIM_CAPACITIES"); text != nullptr) {
      capacities.clear();
      std::istringstream list(text);
      for (std::string item; std::getline(list, item, ',');) capacities.push_back(std::stoll(item));
    }
    trainer::sim::init(static_cast<int>(capacities.size()));
    trainer::sim::set_poison(true);
    for (std::size_t i = 0; i < capacities.size(); ++i) trainer::sim::set_capacity(static_cast<int>(i), capacities[i]);
    return nullptr;
  } catch (const std::exception& error) {
    problem = error.what();
    return problem.c_str();
  }
}
