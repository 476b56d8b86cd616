/// @file See operators.hpp.
#include "operators.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>

#include "cuda.hpp"

namespace trainer::fused {

bool takes(const at::Tensor& tensor, Family family) {
  const at::ScalarType dtype = tensor.scalar_type();
  const bool narrow = dtype == at::kFloat || dtype == at::kBFloat16;
  if (tensor.layout() != c10::kStrided || (!narrow && dtype != at::kDouble)) return false;
  if (tensor.is_cpu() || tensor.is_meta()) return true;
  if (tensor.is_cuda()) return narrow && cuda_is_trusted(tensor.device(), family);
  return falls_back_to_cpu(tensor);
}

bool falls_back_to_cpu(const at::Tensor& tensor) {
  return tensor.is_privateuseone() &&
         c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(c10::DispatchKey::PrivateUse1);
}

void install_operators() {
  // For the life of the process, from a function: never by a static object. Used: leak checkers must find it.
  [[gnu::used]] static const torch::Library* library = [] {
    auto* made = new torch::Library(torch::Library::FRAGMENT, "trainer", std::nullopt, __FILE__, __LINE__);
    install_bf16_parts(*made);
    install_eight_bits(*made);
    install_gated_residual(*made);
    install_kernel_report(*made);
    install_low_rank(*made);
    install_modulated_norm(*made);
    install_norm_rope(*made);
    install_products(*made);
    install_swiglu(*made);
    return made;
  }();
  static_cast<void>(library);
}

namespace {

bool is_rows(const at::Tensor& tensor) {
  if (tensor.stride(-1) != 1) return false;
  for (int64_t i = tensor.dim() - 3; i >= 0; --i)
    if (tensor.size(i) > 1 && tensor.stride(i) != tensor.size(i + 1) * tensor.stride(i + 1)) return false;
  return true;
}

}  // namespace

Rows::Rows(const at::Tensor& given)
    : tensor(is_rows(given) ? given : given.contiguous()),
      count(1),
      width(given.size(-1)),
      step(given.dim() > 1 ? tensor.stride(-2) : width) {
  for (int64_t i = 0; i + 1 < given.dim(); ++i) count *= given.size(i);
}

const void* Rows::data() const { return tensor.const_data_ptr(); }

void for_units(int64_t units, int64_t elements, const std::function<void(int64_t, int64_t)>& body) {
  constexpr int64_t kElementsAThread = 1 << 15;
  at::parallel_for(0, units, std::max<int64_t>(1, kElementsAThread / std::max<int64_t>(1, elements)), body);
}

}  // namespace trainer::fused
