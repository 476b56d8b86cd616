/// @file Four simulated devices, registered once in this test program and before its first backward.
#pragma once

#include <sim/sim.hpp>

namespace trainer::placement {

inline void init_devices() {
  constexpr int kDevices = 4;
  if (sim::devices() == 0) sim::init(kDevices);
  sim::set_poison(true);
}

}  // namespace trainer::placement
