/// @file The fused kernels on CUDA devices: a library beside the SDK's, opened when the first CUDA tensor asks for it.
/// Private to the SDK.
#pragma once

#include <ATen/core/Tensor.h>
#include <kernels/cuda.hpp>

#include <functional>

#include "operators.hpp"

namespace trainer::fused {

/// The kernels; null when this build has none (it was made without nvcc) or they cannot be opened, which is logged
/// once.
const kernels::CudaKernels* cuda_kernels();

/// Whether there are kernels and those of the family compute on this device what the CPU's do: tried on small numbers
/// when a device is first met, since no build machine has a GPU. If they do not, a warning says so and LibTorch's
/// operators are used.
bool cuda_is_trusted(at::Device device, Family family);

/// The same of the kernels for 8-bit numbers: their results must be the CPU's bits.
bool eight_bits_are_trusted(at::Device device);

/// Registers trainer::cuda_kernels(Device) -> str[]: of each family its name, and whether its kernels are "used",
/// "distrusted" or "missing" there; "the CPU's" on a CPU. For reports.
void install_kernel_report(torch::Library& library);

/// Launches on the tensor's device, on its current stream. Throws when the launch fails.
void launch(const at::Tensor& tensor, const std::function<int(const kernels::CudaKernels&, kernels::Stream)>& call);

}  // namespace trainer::fused
