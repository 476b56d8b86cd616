/// @file Three simulated devices, registered once in this test program.
#pragma once

#include <sim/sim.hpp>

namespace trainer::sim {

inline void init_once() {
  constexpr int kDevices = 3;
  if (devices() == 0) init(kDevices);
}

}  // namespace trainer::sim
