/// @file What an error number of a device means for the run.
#pragma once

#include <trainer/sdk/error.hpp>

#include <string_view>

namespace trainer {

/// `number` as CUDA's cudaError_t has it (HIP uses the same for these): out_of_memory, device_lost for errors after
/// which the process can do nothing more on the device, else failed.
ExitCode exit_code_of_device_error(int number);

/// Whether an error's text is that of LibTorch's allocator for the processor's memory: it has no type of its own.
bool says_out_of_memory(std::string_view message);

/// What to do about out_of_memory or device_lost, on a line of its own; empty for other codes.
const char* advice_for(ExitCode code);

}  // namespace trainer
