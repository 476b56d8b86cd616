/// @file Which of the faults is on that planted.py wrote into copies of the kernels.
#pragma once

namespace on_cpu {

bool planted(int number);

}  // namespace on_cpu
