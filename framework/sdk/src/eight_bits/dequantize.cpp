/// @file Packed weights back to matrices, and products with them.

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <trainer/sdk/eight_bit_weights.hpp>
#include <trainer/sdk/ops/products.hpp>

#include <algorithm>
#include <array>

#include "../fused/operators.hpp"

namespace trainer::eight_bits {
namespace {

using Numbers = std::array<float, 256>;  ///< of every 8-bit code

template <typename Float8>
Numbers numbers_of() {
  Numbers numbers{};
  for (unsigned code = 0; code < numbers.size(); ++code)
    numbers.at(code) = Float8(static_cast<uint8_t>(code), Float8::from_bits());
  return numbers;
}
template <>
Numbers numbers_of<int8_t>() {
  Numbers numbers{};
  for (unsigned code = 0; code < numbers.size(); ++code) numbers.at(code) = static_cast<int8_t>(code);
  return numbers;
}

const Numbers& numbers_of(at::ScalarType dtype) {
  static const Numbers e4m3 = numbers_of<c10::Float8_e4m3fn>(), e5m2 = numbers_of<c10::Float8_e5m2>(),
                       int8 = numbers_of<int8_t>();
  return dtype == at::kFloat8_e4m3fn ? e4m3 : dtype == at::kChar ? int8 : e5m2;
}

/// One run of codes that share a scale. A long run is looked up in a table of its 256 products, a short one multiplied.
template <typename Out>
void expand_run(const uint8_t* codes, int64_t count, const Numbers& numbers, float scale, Out* result) {
  constexpr int64_t kLong = 512;
  if (count < kLong) {
    for (int64_t i = 0; i < count; ++i) result[i] = static_cast<Out>(numbers[codes[i]] * scale);
    return;
  }
  std::array<Out, 256> products;
  for (std::size_t code = 0; code < products.size(); ++code) products[code] = static_cast<Out>(numbers[code] * scale);
  for (int64_t i = 0; i < count; ++i) result[i] = products[codes[i]];
}

template <typename Out>
void expand_rows(const Packed& packed, at::Tensor& dense) {
  const int64_t out = dense.size(0), in = dense.size(1), columns = packed.scale.size(1);
  const Numbers& numbers = numbers_of(packed.values.scalar_type());
  const auto* codes = static_cast<const uint8_t*>(packed.values.const_data_ptr());
  const auto* scale = packed.scale.const_data_ptr<float>();
  Out* result = dense.mutable_data_ptr<Out>();
  const int64_t scale_step = packed.scale.size(0) == 1 ? 0 : columns;
  constexpr int64_t kElementsAThread = 1 << 16;
  at::parallel_for(0, out, std::max<int64_t>(1, kElementsAThread / in), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t column = 0, from = 0; from < in; ++column, from += packed.column_block)
        expand_run(codes + row * in + from, std::min(packed.column_block, in - from), numbers,
                   scale[row * scale_step + column], result + row * in + from);
  });
}

/// Multiplies rows [count, in] by their scales, [count or 1, columns], one for every `block` columns; in fp32, rounded
/// once.
void multiply(const at::Tensor& rows, const at::Tensor& scale, int64_t block) {
  const int64_t in = rows.size(1), whole = scale.size(1) == 1 ? 0 : in / block;
  if (scale.size(1) == 1) return void(rows.mul_(scale));
  rows.narrow(1, 0, whole * block).unflatten(1, {whole, block}).mul_(scale.narrow(1, 0, whole).unsqueeze(2));
  if (whole * block < in) rows.narrow(1, whole * block, in - whole * block).mul_(scale.narrow(1, whole, 1));
}

}  // namespace

at::Tensor dequantize_by_operators(const Packed& packed, at::ScalarType dtype) {
  if (dtype == at::kDouble) return dequantize_by_operators(packed, at::kFloat).to(dtype);  // the product is fp32's
  const int64_t out = packed.values.size(0), in = packed.values.size(1);
  at::Tensor dense = at::empty({out, in}, packed.values.options().dtype(dtype));
  // An 8-bit number is one of every wider dtype, so the rows need no fp32 of their own. CUDA's kernels convert one
  // number at a time; others, that convert whole operands, are given little at once.
  constexpr int64_t kElements = 1 << 12;
  const int64_t step = packed.values.is_cuda() ? out : std::max<int64_t>(1, kElements / in);
  for (int64_t begin = 0; begin < out; begin += step) {
    const int64_t count = std::min(step, out - begin);
    const at::Tensor rows = dense.narrow(0, begin, count);
    rows.copy_(packed.values.narrow(0, begin, count));
    multiply(rows, packed.scale.size(0) == 1 ? packed.scale : packed.scale.narrow(0, begin, count),
             packed.column_block);
  }
  return dense;
}

at::Tensor dequantize(const Packed& packed, at::ScalarType dtype) {
  if (has_kernels(packed.values) && dtype != at::kDouble)
    return expand(packed.values, packed.scale, packed.column_block, dtype);
  if (!packed.values.is_cpu() && !packed.values.is_meta()) return dequantize_by_operators(packed, dtype);
  at::Tensor dense = at::empty(packed.values.sizes(), packed.values.options().dtype(dtype));
  if (dense.is_meta()) return dense;  // a dry run: what is held is all that counts
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, dtype, "dequantize",
                                  [&] { expand_rows<scalar_t>(packed, dense); });
  return dense;
}

bool on_cpu(const at::Tensor& tensor) {
  return tensor.is_cpu() || fused::falls_back_to_cpu(tensor) || (tensor.is_meta() && !has_kernels(tensor));
}

at::Tensor product(const at::Tensor& x, const Packed& packed, bool turned) {
  if (on_cpu(x) && x.scalar_type() == at::kBFloat16 && !has_bf16_products())
    return multiply_packed(x, packed.values, packed.scale, packed.column_block, turned);
  const at::Tensor dense = dequantize(packed, x.scalar_type());
  return at::mm(x, turned ? dense.t() : dense);
}

}  // namespace trainer::eight_bits
