/// @file The passes around 8-bit products in awkward shapes, on any device, and what LibTorch's plain operators make of
/// the same numbers on the CPU: for the CPU's loops here, for the kernels of a GPU in tests/gpu.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace trainer::test {

struct EightBitsCase {
  std::string name;
  std::function<std::vector<at::Tensor>(at::Device)> run;  ///< inputs are made on the CPU and moved
  std::function<std::vector<at::Tensor>()> expected;
};
std::ostream& operator<<(std::ostream& out, const EightBitsCase& one);

/// Every pass in every dtype; sizes that fill packs and blocks and that do not, rows that begin anywhere, no rows, rows
/// of zeros, NaN and infinity.
std::vector<EightBitsCase> eight_bits_cases();

/// Whether both hold the same numbers in the same dtype and shape; NaN is NaN.
bool same_numbers(const at::Tensor& a, const at::Tensor& b);

}  // namespace trainer::test
