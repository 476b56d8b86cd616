/// @file See product.hpp.
#include "product.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_int_mm.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <array>
#include <fp8_weight_only/dequantize.hpp>
#include <limits>

namespace trainer::w8a8 {
namespace {

constexpr int64_t kFewestRows = 32;

at::Tensor int8_product(const at::Tensor& a, const at::Tensor& b) { return at::_int_mm(a, b).to(at::kFloat); }

/// fp32 numbers of contiguous 8-bit floats.
at::Tensor widened(const at::Tensor& values) {
  return fp8::dequantize({values, at::ones({1, 1}), values.size(1)}, at::kFloat);
}

/// a [M, K] w^T, w [N, K], both contiguous. LibTorch's `_scaled_mm` on the CPU expands all of w to fp32; here a few
/// rows are expanded at a time.
at::Tensor fp8_product_on_cpu(const at::Tensor& a, const at::Tensor& w) {
  constexpr int64_t kElements = 1 << 16;  // 256 KiB of fp32
  const at::Tensor wide = widened(a);
  at::Tensor sums = at::empty({a.size(0), w.size(0)}, a.options().dtype(at::kFloat));
  const int64_t step = std::max<int64_t>(16, kElements / w.size(1));
  for (int64_t begin = 0; begin < w.size(0); begin += step) {
    const int64_t count = std::min(step, w.size(0) - begin);
    sums.narrow(1, begin, count).copy_(at::mm(wide, widened(w.narrow(0, begin, count)).t()));
  }
  return sums;
}

at::Tensor fp8_product(const at::Tensor& a, const at::Tensor& b) {
  // cuBLASLt multiplies fp8 only when both operands lie along the sum.
  const at::Tensor along = b.stride(0) == 1 ? b : b.t().contiguous().t();
  if (a.is_cpu()) return fp8_product_on_cpu(a, along.t());
  // Without out_dtype the result would be fp8 again.
  const at::Tensor one = at::ones({}, a.options().dtype(at::kFloat));
  return at::_scaled_mm(a, along, one, one, {}, {}, at::kFloat);
}

}  // namespace

Rows quantize_rows(const at::Tensor& matrix, Code code) {
  if (matrix.is_meta()) {  // a dry run: the same bytes, without numbers
    const at::Tensor divided = at::empty(matrix.sizes(), matrix.options().dtype(at::kFloat));
    return {at::empty(matrix.sizes(), matrix.options().dtype(code == Code::int8 ? at::kChar : at::kFloat8_e4m3fn)),
            at::empty({matrix.size(0), 1}, matrix.options().dtype(at::kFloat))};
  }
  const at::Tensor amax =
      at::linalg_vector_norm(matrix, std::numeric_limits<double>::infinity(), {-1}, /*keepdim=*/true, at::kFloat);
  const at::Tensor scale = fp8::scale_for(amax, code);
  return {fp8::saturated_cast(matrix / scale, code), scale};
}

bool fits(int64_t out, int64_t in, Code code) {
  const int64_t multiple = code == Code::int8 ? 8 : 16;
  return out > 0 && in > 0 && out % multiple == 0 && in % multiple == 0;
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  const int64_t rows = a.size(0), more = kFewestRows - rows;
  if (more > 0) {
    // Padding knows no fp8; bytes of zero are zeros in both codes.
    const at::Tensor bytes = at::constant_pad_nd(a.view(at::kByte), std::array<int64_t, 4>{0, 0, 0, more}, 0);
    return product(bytes.view(a.scalar_type()), b).narrow(0, 0, rows);
  }
  return a.scalar_type() == at::kChar ? int8_product(a, b) : fp8_product(a, b);
}

}  // namespace trainer::w8a8
