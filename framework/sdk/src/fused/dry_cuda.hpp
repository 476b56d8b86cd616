/// @file Which devices of a dry run stand for CUDA devices: there operations allocate what they do on CUDA, not what
/// the CPU's do. For the assembly of dry runs; not installed.
#pragma once

#include <ATen/core/Tensor.h>
#include <trainer/sdk/abi.h>

#include <cstdint>
#include <vector>

namespace trainer::fused {

/// While it lives "meta:i" stands for a CUDA device where `cuda[i]` is true, and no other does: kernels are taken to be
/// there and trusted, no GPU is asked. For the process: of several the newest counts, so only its owner may run on dry
/// devices, and they end in the reverse order, each giving back what was so before. The first 64 devices.
class TRAINER_API DryCuda {
 public:
  explicit DryCuda(const std::vector<bool>& cuda);
  ~DryCuda();
  DryCuda(const DryCuda&) = delete;
  DryCuda& operator=(const DryCuda&) = delete;

 private:
  uint64_t before_;
};

bool stands_for_cuda(const at::Tensor& tensor);

}  // namespace trainer::fused
