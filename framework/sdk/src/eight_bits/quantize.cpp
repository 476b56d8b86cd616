/// @file Numbers to 8 bits. After torchao's Float8WeightOnlyConfig (per row) and the block scales of musubi-tuner.
#include "numbers.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>
#include <c10/core/DeviceGuard.h>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>

#include <algorithm>
#include <limits>

namespace trainer::eight_bits {
namespace {

/// Of fp32 rows at a time: what fits a core's cache; on a GPU, which is waited for after each, more.
constexpr int64_t kRowsBytes = 1 << 20, kRowsBytesOnCuda = 16 << 20;

/// Calls `use(begin, rows)` with consecutive rows of `matrix` in fp32. In a dry run the first ones stand for all: what
/// packing holds for a while is counted with them.
template <typename Use>
void for_each_rows(const at::Tensor& matrix, const Use& use) {
  const int64_t bytes = matrix.is_cuda() ? kRowsBytesOnCuda : kRowsBytes;
  const int64_t step = std::max<int64_t>(1, bytes / static_cast<int64_t>(sizeof(float)) / matrix.size(1));
  const int64_t out = matrix.is_meta() ? std::min(step, matrix.size(0)) : matrix.size(0);
  for (int64_t begin = 0; begin < out; begin += step)
    use(begin, matrix.narrow(0, begin, std::min(step, out - begin)).to(at::kFloat));
}

/// Of what shares a scale, along the last dimension. NaN wins over all numbers.
at::Tensor largest(const at::Tensor& values, const std::string& name) {
  at::Tensor amax = at::amax(at::abs(values), {-1}, /*keepdim=*/true);
  const at::Tensor finite = at::isfinite(amax).all();
  if (!finite.is_meta() && !finite.item<bool>())
    throw Error(ExitCode::bad_input,
                "tensor " + quote_name(name) +
                    " holds NaN, infinity or numbers beyond fp32: it cannot be packed into 8 bits; the file is damaged",
                "FP8_NOT_FINITE");
  return amax;
}

/// [..., 1] scales for rows whose largest absolute values are `amax` [..., 1].
at::Tensor scale_for(const at::Tensor& amax, Code code) {
  // A scale below the normal range would lose digits or become 0.
  const at::Tensor scale = (amax / largest_of(code)).clamp_min(std::numeric_limits<float>::min());
  return at::where(amax == 0, at::full({}, 1.0F, amax.options()), scale);
}

}  // namespace

Granularity granularity_from(const std::string& text, const std::string& key) {
  if (text == "channel") return Granularity::channel;
  if (text == "tensor") return Granularity::tensor;
  if (text == "block") return Granularity::block;
  throw Error(ExitCode::bad_recipe, key + ": \"" + text + "\" is none of channel, tensor, block");
}

float largest_of(Code code) { return code == Code::e4m3 ? 448 : 127; }

int64_t scale_count(Granularity granularity, int64_t out, int64_t in) {
  if (granularity == Granularity::tensor) return 1;
  return granularity == Granularity::block && in % kBlock == 0 ? out * (in / kBlock) : out;
}

Packed quantize(const at::Tensor& weight, Granularity granularity, const std::string& name, Code code) {
  const c10::DeviceGuard guard(weight.device());
  const int64_t out = weight.size(0), in = weight.size(1);
  Packed packed;
  packed.values = at::empty({out, in}, weight.options().dtype(code == Code::e4m3 ? at::kFloat8_e4m3fn : at::kChar));
  packed.column_block = granularity == Granularity::block && in % kBlock == 0 ? kBlock : in;
  const int64_t columns = in / packed.column_block;
  if (granularity == Granularity::tensor) {
    at::Tensor amax = at::full({1, 1}, 0.0F, weight.options().dtype(at::kFloat));
    for_each_rows(weight, [&](int64_t, const at::Tensor& rows) {
      amax = at::maximum(amax, largest(rows.reshape({1, -1}), name));
    });
    packed.scale = scale_for(amax, code);
  } else {
    packed.scale = at::empty({out, columns}, weight.options().dtype(at::kFloat));
  }
  for_each_rows(weight, [&](int64_t begin, const at::Tensor& rows) {
    const int64_t count = rows.size(0);
    const at::Tensor groups = rows.view({count, columns, packed.column_block});
    at::Tensor scale = packed.scale;
    if (granularity != Granularity::tensor) {
      scale = scale_for(largest(groups, name), code).squeeze(2);
      packed.scale.narrow(0, begin, count).copy_(scale);
    }
    packed.values.narrow(0, begin, count).copy_(saturated_cast(groups / scale.unsqueeze(2), code).view({count, in}));
  });
  return packed;
}

at::Tensor saturated_cast(at::Tensor numbers, Code code) {
  const float largest = largest_of(code);
  if (code == Code::int8) return numbers.round_().clamp_(-largest, largest).to(at::kChar);
  return numbers.clamp_(-largest, largest).to(at::kFloat8_e4m3fn);
}

Rows quantize_rows(const at::Tensor& matrix, Code code) {
  if (matrix.is_meta()) {  // a dry run: the same bytes, without numbers
    const at::Tensor divided = at::empty(matrix.sizes(), matrix.options().dtype(at::kFloat));
    return {at::empty(matrix.sizes(), matrix.options().dtype(code == Code::int8 ? at::kChar : at::kFloat8_e4m3fn)),
            at::empty({matrix.size(0), 1}, matrix.options().dtype(at::kFloat))};
  }
  const at::Tensor amax =
      at::linalg_vector_norm(matrix, std::numeric_limits<double>::infinity(), {-1}, /*keepdim=*/true, at::kFloat);
  const at::Tensor scale = scale_for(amax, code);
  return {saturated_cast(matrix / scale, code), scale};
}

void require_finite(const at::Tensor& matrix, const std::string& name) {
  const c10::DeviceGuard guard(matrix.device());
  for_each_rows(matrix, [&](int64_t, const at::Tensor& rows) { largest(rows.reshape({1, -1}), name); });
}

}  // namespace trainer::eight_bits
