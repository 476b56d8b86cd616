/// @file What the fused operations share: which tensors they take, their operators and the rows they work on. Each is
/// an operator of the dispatcher (trainer::swiglu, ...), so that devices, dry runs and profilers meet it as they meet
/// LibTorch's own. Private to the SDK.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace torch {
class Library;
}

namespace trainer::fused {

/// Kernels that are tried and trusted together (cuda.hpp).
enum class Family { modulated_norm, norm_rope, swiglu, gated_residual, low_rank };

/// Whether the family's kernels work on this device with this dtype, or the tensor falls back to the CPU's.
bool takes(const at::Tensor& tensor, Family family);
/// Whether its backend runs operators that it does not know on the CPU, as a simulated device does.
bool falls_back_to_cpu(const at::Tensor& tensor);

/// Registers all operators, once per process.
void install_operators();
void install_bf16_parts(torch::Library& library);
void install_eight_bits(torch::Library& library);
void install_gated_residual(torch::Library& library);
void install_low_rank(torch::Library& library);
void install_modulated_norm(torch::Library& library);
void install_norm_rope(torch::Library& library);
void install_products(torch::Library& library);
void install_swiglu(torch::Library& library);

/// A tensor whose last dimension lies dense and whose other dimensions are one sequence of rows; a copy if need be.
struct Rows {
  explicit Rows(const at::Tensor& tensor);
  at::Tensor tensor;
  int64_t count, width, step;  ///< step: elements from a row to the next
  [[nodiscard]] const void* data() const;
};

/// body(begin, end) over [0, units) in the threads of LibTorch; `elements` of a unit decide how many are worth one.
void for_units(int64_t units, int64_t elements, const std::function<void(int64_t, int64_t)>& body);

}  // namespace trainer::fused
