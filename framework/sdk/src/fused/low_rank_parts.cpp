/// @file See low_rank_parts.hpp.
#include "low_rank_parts.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <kernels/fused.h>

#include <array>

namespace trainer::fused::by_parts {
namespace {

using at::Tensor;
using Below = at::AutoDispatchBelowADInplaceOrView;  // the operator that calls is the heavy one

/// Of an exact sum, and of the largest three products of two numbers' parts: 0 0, 0 1, 1 0.
constexpr std::array<int64_t, kernels::Bf16Parts::kSlots> kAll{0, 1, 2}, kOfFirst{0, 0, 1}, kOfSecond{0, 1, 0};

/// The operator, which is there when another of the SDK's calls.
Tensor split(const Tensor& matrix, at::IntArrayRef order, double factor, bool beside) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("trainer::bf16_parts", "")
                             .typed<Tensor(const Tensor&, at::IntArrayRef, double, bool)>();
  return op.call(matrix, order, factor, beside);
}

/// [3 rank, width] of fp32 [rank, width], whichever of its sides lies dense.
Tensor parts_of(const Tensor& matrix, at::IntArrayRef order, double factor) {
  if (!matrix.is_contiguous() && matrix.t().is_contiguous())
    return split(matrix.t(), order, factor, /*beside=*/true).t();
  return split(matrix.contiguous(), order, factor, /*beside=*/false);
}
/// [rows, 3 rank] of `low` [rows, rank].
Tensor low_parts(const Tensor& low, at::IntArrayRef order, double factor) {
  return split(low.contiguous(), order, factor, /*beside=*/true);
}

/// Of bf16 matrices, in fp32. The CPU, where tests compute by parts, has no such product.
Tensor fp32_product(const Tensor& a, const Tensor& b) {
  return a.is_cuda() ? at::mm(a, b, at::kFloat) : at::mm(a.to(at::kFloat), b.to(at::kFloat));
}

bool is_bf16(at::ScalarType dtype) { return dtype == at::kBFloat16; }
Tensor times(const Tensor& x, double factor) { return factor == 1 ? x : x * factor; }

}  // namespace

Tensor down(const Tensor& x, const Tensor& weight, double factor) {
  const Below below;
  if (!is_bf16(x.scalar_type())) return times(at::mm(x, weight.t()), factor);
  const Tensor sums = fp32_product(x, parts_of(weight, kAll, factor).t());
  return sums.view({x.size(0), kernels::Bf16Parts::kSlots, weight.size(0)}).sum(1);
}

Tensor outer(const Tensor& low, const Tensor& x, double factor) {
  const Below below;
  if (!is_bf16(x.scalar_type())) return times(at::mm(low.t(), x), factor);
  const Tensor sums = fp32_product(low_parts(low, kAll, factor).t(), x);
  return sums.view({kernels::Bf16Parts::kSlots, low.size(1), x.size(1)}).sum(0);
}

Tensor up(const Tensor& low, const Tensor& weight, const std::optional<Tensor>& base, double factor,
          at::ScalarType dtype) {
  const Below below;
  if (!is_bf16(dtype)) {
    if (!base) return at::mm(times(low, factor), weight).to(dtype);
    return at::addmm(base->to(weight.scalar_type()), low, weight, /*beta=*/1, factor).to(dtype);
  }
  const Tensor rows = low_parts(low, kOfFirst, factor), columns = parts_of(weight, kOfSecond, 1);
  return base ? at::addmm(base->to(dtype), rows, columns) : at::mm(rows, columns);
}

Tensor& up_in_place(const Tensor& low, const Tensor& weight, double factor, Tensor& base) {
  const Below below;
  if (!is_bf16(base.scalar_type())) return base.addmm_(low, weight, /*beta=*/1, factor);
  return base.addmm_(low_parts(low, kOfFirst, factor), parts_of(weight, kOfSecond, 1));
}

}  // namespace trainer::fused::by_parts
