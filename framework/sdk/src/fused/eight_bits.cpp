/// @file Passes around products of 8-bit numbers: operators and the CPU's loops.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <kernels/eight_bits_numbers.h>
#include <torch/library.h>
#include <trainer/sdk/ops/eight_bits.hpp>

#include <algorithm>

#include <trainer/sdk/dry_devices.hpp>
#include "bindings.hpp"
#include "cuda.hpp"
#include "operators.hpp"

namespace trainer {
namespace fused {
namespace {

using at::Tensor;
using kernels::Number;
using Maybe = std::optional<Tensor>;

Number number_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return Number::f32;
    case at::kBFloat16:
      return Number::bf16;
    case at::kHalf:
      return Number::f16;
    case at::kFloat8_e4m3fn:
      return Number::e4m3;
    case at::kFloat8_e5m2:
      return Number::e5m2;
    case at::kChar:
      return Number::int8;
    case at::kInt:
      return Number::int32;
    default:
      TORCH_CHECK(false, "an operation on 8-bit numbers was given ", dtype);
  }
}

/// use(element) with an element of the type.
template <typename Use>
void with_number(Number number, const Use& use) {
  if (number == Number::f32) use(float{});
  if (number == Number::bf16) use(kernels::Bfloat16{});
  if (number == Number::f16) use(kernels::Float16{});
  if (number == Number::e4m3) use(kernels::E4m3{});
  if (number == Number::e5m2) use(kernels::E5m2{});
  if (number == Number::int8) use(int8_t{});
  if (number == Number::int32) use(int32_t{});
}
template <typename Use>
void with_numbers(Number from, Number to, const Use& use) {
  with_number(from, [&](auto source) { with_number(to, [&](auto target) { use(source, target); }); });
}

bool is_floating(Number number) { return number == Number::f32 || number == Number::bf16 || number == Number::f16; }
bool is_byte(Number number) { return number == Number::e4m3 || number == Number::e5m2 || number == Number::int8; }

const float* data_of(const Maybe& scales) {
  return scales.has_value() && scales->defined() ? scales->const_data_ptr<float>() : nullptr;
}
void require_scales(const Tensor& like, const Maybe& scales, int64_t count) {
  if (!scales.has_value() || !scales->defined()) return;
  TORCH_CHECK(scales->scalar_type() == at::kFloat && scales->numel() == count && scales->is_contiguous() &&
                  scales->device() == like.device(),
              "scales must be ", count, " dense fp32 numbers beside what they scale");
}
Tensor dense_matrix(const Tensor& x) {
  TORCH_CHECK(x.dim() == 2, "an operation on 8-bit numbers takes a matrix, not ", x.sizes());
  return x.contiguous();
}

std::tuple<Tensor, Tensor> quantize_rows(const Tensor& x, const Maybe& factors, at::ScalarType code) {
  TORCH_CHECK(x.dim() == 2, "rows of a matrix are made into 8 bits, not ", x.sizes());
  const Rows rows(x);
  require_scales(x, factors, rows.width);
  Tensor values = at::empty(x.sizes(), x.options().dtype(code));
  Tensor scale = at::empty({rows.count, 1}, x.options().dtype(at::kFloat));
  if (x.is_meta()) return {values, scale};
  const kernels::QuantizeRows a{number_of(x.scalar_type()),
                                number_of(code),
                                rows.count,
                                rows.width,
                                rows.data(),
                                rows.step,
                                data_of(factors),
                                values.mutable_data_ptr(),
                                scale.mutable_data_ptr<float>()};
  TORCH_CHECK(is_floating(a.from) && (a.to == Number::e4m3 || a.to == Number::int8), "no 8-bit code is ", code);
  if (x.is_cuda()) {
    launch(x, [&](const auto& cuda, kernels::Stream stream) { return cuda.quantize_rows(&a, stream); });
    return {values, scale};
  }
  const auto loop = [&]<typename From, typename To>(From, To) {
    for_units(a.rows, a.width, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const From* from = static_cast<const From*>(a.x) + row * a.x_step;
        const auto number = [&](int64_t i) {
          return kernels::to_float(from[i]) * (a.factors != nullptr ? a.factors[i] : 1.0F);
        };
        uint32_t largest = 0;
        for (int64_t i = 0; i < a.width; ++i) largest = std::max(largest, kernels::magnitude(number(i)));
        const float row_scale = kernels::row_scale(kernels::float_of(largest), kernels::largest_of(To{}));
        a.scale[row] = row_scale;
        To* to = static_cast<To*>(a.values) + row * a.width;
        for (int64_t i = 0; i < a.width; ++i) kernels::round_to(number(i) / row_scale, to + i);
      }
    });
  };
  with_number(a.from, [&](auto from) { a.to == Number::e4m3 ? loop(from, kernels::E4m3{}) : loop(from, int8_t{}); });
  return {values, scale};
}

/// to(r, c) = from(r, c) scaled by scale(r, c, from(r, c)), on the CPU.
template <typename From, typename To, typename Scale>
void convert(const void* from, void* to, int64_t rows, int64_t width, const Scale& scale) {
  for_units(rows, width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t i = 0, at = row * width; i < width; ++i, ++at)
        kernels::round_to(scale(row, i, kernels::to_float(static_cast<const From*>(from)[at])),
                          static_cast<To*>(to) + at);
  });
}
template <typename To>
constexpr bool kFloating =
    !std::is_integral_v<To> && !std::is_same_v<To, kernels::E4m3> && !std::is_same_v<To, kernels::E5m2>;

Tensor scale_sums(const Tensor& given, const Tensor& row_scale, const Maybe& column_scale, at::ScalarType dtype) {
  const Tensor sums = dense_matrix(given);
  require_scales(sums, row_scale, sums.size(0));
  require_scales(sums, column_scale, sums.size(1));
  Tensor y = at::empty(sums.sizes(), sums.options().dtype(dtype));
  if (y.is_meta()) return y;
  const kernels::ScaleSums a{number_of(sums.scalar_type()),
                             number_of(dtype),
                             sums.size(0),
                             sums.size(1),
                             sums.const_data_ptr(),
                             row_scale.const_data_ptr<float>(),
                             data_of(column_scale),
                             y.mutable_data_ptr()};
  TORCH_CHECK((a.from == Number::f32 || a.from == Number::int32) && is_floating(a.to), "sums are fp32 or int32");
  if (y.is_cuda()) {
    launch(y, [&](const auto& cuda, kernels::Stream stream) { return cuda.scale_sums(&a, stream); });
    return y;
  }
  with_numbers(a.from, a.to, [&]<typename From, typename To>(From, To) {
    if constexpr (kFloating<To>)
      convert<From, To>(a.sums, a.y, a.rows, a.width, [&](int64_t row, int64_t i, float sum) {
        const float once = sum * a.row_scale[row];
        return a.column_scale != nullptr ? once * a.column_scale[i] : once;
      });
  });
  return y;
}

Tensor expand(const Tensor& given, const Tensor& scale, int64_t block, at::ScalarType dtype) {
  const Tensor values = dense_matrix(given);
  const int64_t out = values.size(0), in = values.size(1);
  const bool one_row = scale.dim() == 2 && scale.size(0) == 1;
  TORCH_CHECK(scale.dim() == 2 && (one_row || scale.size(0) == out) && block > 0 && scale.size(1) * block >= in,
              "scales ", scale.sizes(), " for blocks of ", block, " do not cover a weight ", values.sizes());
  require_scales(values, scale, scale.numel());
  Tensor y = at::empty(values.sizes(), values.options().dtype(dtype));
  if (y.is_meta()) return y;
  const kernels::ExpandCodes a{number_of(values.scalar_type()),
                               number_of(dtype),
                               out,
                               in,
                               block,
                               values.const_data_ptr(),
                               scale.const_data_ptr<float>(),
                               one_row ? 0 : scale.size(1),
                               y.mutable_data_ptr()};
  TORCH_CHECK(is_byte(a.from) && is_floating(a.to), "8-bit numbers are expanded into fp32, bf16 or fp16");
  if (y.is_cuda()) {
    launch(y, [&](const auto& cuda, kernels::Stream stream) { return cuda.expand_codes(&a, stream); });
    return y;
  }
  with_numbers(a.from, a.to, [&]<typename From, typename To>(From, To) {
    if constexpr (kFloating<To>)
      convert<From, To>(a.values, a.y, a.rows, a.width, [&](int64_t row, int64_t i, float number) {
        return number * a.scale[row * a.scale_step + i / a.block];
      });
  });
  return y;
}

Tensor transpose_bytes(const Tensor& given) {
  const Tensor x = dense_matrix(given);
  TORCH_CHECK(is_byte(number_of(x.scalar_type())), "bytes are transposed, not ", x.scalar_type());
  if (!x.is_cuda()) return x.t().contiguous();
  Tensor y = at::empty({x.size(1), x.size(0)}, x.options());
  const kernels::TransposeBytes a{x.size(0), x.size(1), x.const_data_ptr(), y.mutable_data_ptr()};
  launch(y, [&](const auto& cuda, kernels::Stream stream) { return cuda.transpose_bytes(&a, stream); });
  return y;
}

}  // namespace

void install_eight_bits(torch::Library& library) {
  library.def("quantize_rows(Tensor x, Tensor? factors, ScalarType code) -> (Tensor, Tensor)");
  library.def("scale_sums(Tensor sums, Tensor row_scale, Tensor? column_scale, ScalarType dtype) -> Tensor");
  library.def("expand_codes(Tensor values, Tensor scale, int block, ScalarType dtype) -> Tensor");
  library.def("transpose_bytes(Tensor values) -> Tensor");
  for (const c10::DispatchKey key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA, c10::DispatchKey::Meta}) {
    library.impl("quantize_rows", torch::dispatch(key, &quantize_rows));
    library.impl("scale_sums", torch::dispatch(key, &scale_sums));
    library.impl("expand_codes", torch::dispatch(key, &expand));
    library.impl("transpose_bytes", torch::dispatch(key, &transpose_bytes));
  }
}

}  // namespace fused

namespace eight_bits {
namespace {

using at::Tensor;
using Maybe = std::optional<Tensor>;

Maybe maybe(const Tensor& tensor) { return tensor.defined() ? Maybe(tensor) : std::nullopt; }

}  // namespace

bool has_kernels(const Tensor& tensor) {
  if (tensor.is_meta()) return tensor.scalar_type() != at::kDouble && stands_for_cuda(tensor);
  return tensor.is_cuda() && tensor.scalar_type() != at::kDouble && fused::eight_bits_are_trusted(tensor.device());
}

Rows quantize_rows(const Tensor& x, const Tensor& factors, at::ScalarType code) {
  static const auto op = fused::operator_of<std::tuple<Tensor, Tensor>(const Tensor&, const Maybe&, at::ScalarType)>(
      "trainer::quantize_rows");
  const at::AutoDispatchBelowADInplaceOrView below;
  auto [values, scale] = op.call(x, maybe(factors), code);
  return {std::move(values), std::move(scale)};
}

Tensor scale_sums(const Tensor& sums, const Tensor& row_scale, const Tensor& column_scale, at::ScalarType dtype) {
  static const auto op =
      fused::operator_of<Tensor(const Tensor&, const Tensor&, const Maybe&, at::ScalarType)>("trainer::scale_sums");
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(sums, row_scale, maybe(column_scale), dtype);
}

Tensor expand(const Tensor& values, const Tensor& scale, int64_t block, at::ScalarType dtype) {
  static const auto op =
      fused::operator_of<Tensor(const Tensor&, const Tensor&, int64_t, at::ScalarType)>("trainer::expand_codes");
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(values, scale, block, dtype);
}

Tensor transposed(const Tensor& values) {
  static const auto op = fused::operator_of<Tensor(const Tensor&)>("trainer::transpose_bytes");
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(values);
}

}  // namespace eight_bits
}  // namespace trainer
