#include <base/device_error.hpp>

#include <algorithm>
#include <array>

namespace trainer {
namespace {

/// cudaErrorMemoryAllocation.
constexpr int kOutOfMemory = 2;

/// Errors that CUDA's documentation calls fatal for the context, or that say that the device is gone.
constexpr std::array kLost{
    46,   // DevicesUnavailable
    100,  // NoDevice
    101,  // InvalidDevice
    214,  // ECCUncorrectable
    220,  // NvlinkUncorrectable
    226,  // Contained
    700,  // IllegalAddress
    702,  // LaunchTimeout
    709,  // ContextIsDestroyed
    710,  // Assert
    714,  // HardwareStackError
    715,  // IllegalInstruction
    716,  // MisalignedAddress
    717,  // InvalidAddressSpace
    718,  // InvalidPc
    719,  // LaunchFailure
    721,  // TensorMemoryLeak
    802,  // SystemNotReady
};

}  // namespace

ExitCode exit_code_of_device_error(int number) {
  if (number == kOutOfMemory) return ExitCode::out_of_memory;
  return std::find(kLost.begin(), kLost.end(), number) != kLost.end() ? ExitCode::device_lost : ExitCode::failed;
}

bool says_out_of_memory(std::string_view message) {
  return message.find("DefaultCPUAllocator: can't allocate memory") != std::string_view::npos ||
         message.find("DefaultCPUAllocator: not enough memory") != std::string_view::npos;
}

const char* advice_for(ExitCode code) {
  if (code == ExitCode::out_of_memory)
    return "\n  Less memory: memory.strategies = [\"full_checkpointing\"], a smaller train.micro_batch_size or "
           "resolution. A memory.budget is planned once and not again after this: give a lower one.";
  if (code != ExitCode::device_lost) return "";
  return "\n  A device failed or was lost. Look at it (nvidia-smi, the kernel's log); the last checkpoint is good, and "
         "the "
         "same command goes on from there.";
}

}  // namespace trainer
