/// @file Dry runs: the meta devices that stand for the devices of a run. Where one stands for a CUDA device, operations
/// allocate what they allocate on CUDA, not what they allocate on the CPU. Whoever runs a model on shapes to count its
/// bytes, as `trainer plan` does, says which devices these are.
#pragma once

#include <ATen/core/Tensor.h>
#include <trainer/sdk/abi.h>

#include <cstdint>
#include <vector>

namespace trainer {

/// While it lives, "meta:i" stands for a CUDA device where `cuda[i]` is true, and no other device does. Kernels are
/// taken to be there and trusted; no GPU is asked. It counts for the whole process, for the first 64 devices. Of
/// several the newest counts: only its owner may run on dry devices. They end in the reverse order, and each restores
/// what held before it.
class TRAINER_API DryDevices {
 public:
  explicit DryDevices(const std::vector<bool>& cuda);
  ~DryDevices();
  DryDevices(const DryDevices&) = delete;
  DryDevices& operator=(const DryDevices&) = delete;

 private:
  uint64_t before_;
};

/// Whether `tensor` lies on a meta device that stands for a CUDA device.
TRAINER_API bool stands_for_cuda(const at::Tensor& tensor);

}  // namespace trainer
