/// @file Parts of fp32 matrices for products of bf16 (low_rank_parts.hpp): the operator. The CPU's is of LibTorch's
/// operators, for tests and as what the kernel must match.
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include "bindings.hpp"
#include "cuda.hpp"

namespace trainer::fused {
namespace {

using at::Tensor;
constexpr int64_t kSlots = kernels::Bf16Parts::kSlots;

Tensor by_operators(const Tensor& matrix, at::IntArrayRef order, double factor, bool beside) {
  const at::AutoDispatchBelowADInplaceOrView below;
  std::vector<Tensor> parts, slots;
  Tensor rest = factor == 1 ? matrix : matrix * factor;
  for (int64_t i = 0; i < kSlots; ++i) {
    parts.push_back(rest.to(at::kBFloat16));
    const Tensor taken = parts.back().to(at::kFloat);
    rest = at::where(at::isfinite(taken), rest - taken, 0.0);
  }
  for (const int64_t part : order) slots.push_back(parts[static_cast<std::size_t>(part)]);
  return at::cat(slots, beside ? 1 : 0);
}

/// matrix [rows, width] -> the parts, one below another [3 rows, width] or `beside` each other [rows, 3 width].
Tensor bf16_parts(const Tensor& matrix, at::IntArrayRef order, double factor, bool beside) {
  TORCH_CHECK(matrix.dim() == 2 && matrix.is_contiguous() && matrix.scalar_type() == at::kFloat,
              "parts are of a dense fp32 matrix");
  TORCH_CHECK(order.size() == kSlots, "parts have ", kSlots, " slots, not ", order.size());
  for (const int64_t part : order) TORCH_CHECK(part >= 0 && part < kSlots, "there is no part ", part);
  const int64_t rows = matrix.size(0), width = matrix.size(1);
  if (matrix.is_cpu()) return by_operators(matrix, order, factor, beside);
  Tensor y = at::empty({beside ? rows : kSlots * rows, beside ? kSlots * width : width},
                       matrix.options().dtype(at::kBFloat16));
  if (y.is_meta() || y.numel() == 0) return y;
  kernels::Bf16Parts a{rows,
                       width,
                       static_cast<float>(factor),
                       matrix.const_data_ptr<float>(),
                       beside ? width : rows * width,
                       beside ? kSlots * width : width,
                       {},
                       y.mutable_data_ptr()};
  for (int64_t i = 0; i < kSlots; ++i) a.order[i] = static_cast<int32_t>(order[static_cast<std::size_t>(i)]);
  launch(y, [&](const auto& cuda, kernels::Stream stream) { return cuda.bf16_parts(&a, stream); });
  return y;
}

}  // namespace

void install_bf16_parts(torch::Library& library) {
  library.def("bf16_parts(Tensor matrix, int[] order, float factor, bool beside) -> Tensor");
  for (const c10::DispatchKey key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA, c10::DispatchKey::Meta})
    library.impl("bf16_parts", torch::dispatch(key, &bf16_parts));
}

}  // namespace trainer::fused
