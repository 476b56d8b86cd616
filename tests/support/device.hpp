/// @file Devices for tests and benchmarks that run on the CPU or on a GPU.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace trainer::testing {

/// "cpu", "cuda:0": a CUDA device is opened as a run opens it, from the LibTorch of this process. `where` is for
/// messages. Throws Error as assembly::parse_devices and assembly::open_devices do.
at::Device open_device(const std::string& name, const std::string& where);

/// TRAINER_TEST_DEVICE ("cuda:0"); the CPU where it is unset. On CUDA with LibTorch's deterministic
/// algorithms on, since tests compare bits.
at::Device test_device();

}  // namespace trainer::testing
