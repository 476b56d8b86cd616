/// @file Which devices of a dry run stand for CUDA devices: there operations allocate what they do on CUDA, not what
/// the CPU's do. For the assembly of dry runs; not installed.
#pragma once

#include <ATen/core/Tensor.h>
#include <trainer/sdk/abi.h>

namespace trainer::fused {

/// Says so of "meta:N", for the life of the process or until it is said otherwise. Kernels are taken to be there and
/// trusted; no GPU is asked. Others than meta devices: nothing.
TRAINER_API void set_dry_cuda(at::Device device, bool cuda);

bool stands_for_cuda(const at::Tensor& tensor);

}  // namespace trainer::fused
