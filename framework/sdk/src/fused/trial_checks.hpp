/// @file How the trials of CUDA kernels (cuda_trial.cpp) compute and compare. Private to the SDK.
#pragma once

#include <ATen/core/Tensor.h>

#include <mutex>
#include <vector>

namespace trainer::fused {

/// While it lives, products of fp32 numbers are of all their bits, on every device of the process. NVIDIA's containers
/// turn TF32 on (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE), with which they keep 11 bits: whoever wants that gets it from these
/// products as from LibTorch's own, but a trial could not tell it from a mistake. One at a time; others wait.
class FullPrecision {
 public:
  FullPrecision();
  ~FullPrecision();
  FullPrecision(const FullPrecision&) = delete;
  FullPrecision& operator=(const FullPrecision&) = delete;

 private:
  std::lock_guard<std::mutex> one_;
  const char* before_;  ///< by LibTorch's name
};

/// Throws std::runtime_error naming the first result that is farther from what is expected than rounding takes it, in
/// parts of the largest number expected: 1e-4 where results are fp32, whatever the data; 2e-2 of bf16.
void require_same_results(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected);

}  // namespace trainer::fused
