/// @file See product.hpp.
#include "product.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_int_mm.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <trainer/sdk/ops/products.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>

namespace trainer::w8a8 {
namespace {

constexpr int64_t kFewestRows = 32;

/// a [M, K] b [K, N], where b may lie transposed. LibTorch's `_scaled_mm` on the CPU expands all of b to fp32. Here it
/// is expanded in the product's panels.
at::Tensor expanded_product(const at::Tensor& a, const at::Tensor& b) {
  const bool turned = b.stride(0) == 1;
  const at::Tensor values = (turned ? b.t() : b).contiguous(), one = at::ones({1, 1}, a.options().dtype(at::kFloat));
  const at::Tensor wide =
      a.scalar_type() == at::kChar ? a.to(at::kFloat) : eight_bits::dequantize({a, one, a.size(1)}, at::kFloat);
  return multiply_packed(wide, values, one, values.size(1), turned);
}

at::Tensor fp8_product(const at::Tensor& a, const at::Tensor& b, bool fast) {
  if (eight_bits::on_cpu(a)) return expanded_product(a, b);
  // cuBLASLt multiplies fp8 only when both operands lie along the sum.
  const at::Tensor along = b.stride(0) == 1 ? b : b.t().contiguous().t();
  // Without out_dtype the result would be fp8 again.
  const at::Tensor one = at::ones({}, a.options().dtype(at::kFloat));
  return at::_scaled_mm(a, along, one, one, {}, {}, at::kFloat, fast);
}

/// Whether LibTorch's int8 products on the CPU are exact. It asks the processor for VNNI, then oneDNN for the product.
/// Where ONEDNN_MAX_CPU_ISA holds oneDNN below VNNI, that adds in 16 bits and saturates.
bool int8_is_exact() {
  static const bool exact = [] {
    const at::AutoDispatchBelowADInplaceOrView below;  // no operation of the model
    const at::Tensor most = at::full({kFewestRows, 64}, 127, at::kChar);
    return at::_int_mm(most, most.t()).eq(127 * 127 * 64).all().item<bool>();
  }();
  return exact;
}

/// int32, or fp32 of the same numbers.
at::Tensor int8_sums(const at::Tensor& a, const at::Tensor& b) {
  if (!eight_bits::on_cpu(a) || a.is_meta() || int8_is_exact()) return at::_int_mm(a, b);
  return expanded_product(a, b);
}

/// With so many more rows of zeros.
at::Tensor with_rows(const at::Tensor& values, int64_t more) {
  // Padding knows no fp8; bytes of zero are zeros in both codes.
  const at::Tensor bytes = at::constant_pad_nd(values.view(at::kByte), std::array<int64_t, 4>{0, 0, 0, more}, 0);
  return bytes.view(values.scalar_type());
}

/// int32 or fp32.
at::Tensor sums_of(const at::Tensor& a, const at::Tensor& along, bool fast) {
  return a.scalar_type() == at::kChar ? int8_sums(a, along) : fp8_product(a, along, fast);
}

/// `columns`: scales [N].
at::Tensor row_wise_product(const eight_bits::Rows& rows, const at::Tensor& along, const at::Tensor& columns,
                            bool fast) {
  return at::_scaled_mm(rows.values, along, rows.scale, columns.view({1, -1}), {}, {}, at::kBFloat16, fast);
}

bool try_row_wise(at::Device device, bool fast) {
  const at::AutoDispatchBelowADInplaceOrView below;  // no operation of the model
  const at::Tensor x = at::linspace(-3, 5, 45 * 64).sin_().view({45, 64}),
                   b = at::linspace(-7, 3, 80 * 64).cos_().view({80, 64}), channels = at::linspace(0.25, 2, 80);
  const eight_bits::Rows rows = eight_bits::quantize_rows(x, {}, at::kFloat8_e4m3fn),
                         weight = eight_bits::quantize_rows(b, {}, at::kFloat8_e4m3fn);
  const at::Tensor expected =
      eight_bits::scale_sums(fp8_product(rows.values, weight.values.t(), false), rows.scale, channels, at::kFloat);
  try {
    const at::Tensor got = row_wise_product({rows.values.to(device), rows.scale.to(device)},
                                            weight.values.to(device).t(), channels.to(device), fast);
    const double error =
        (got.cpu().to(at::kFloat) - expected).abs().max().item<double>() / expected.abs().max().item<double>();
    constexpr double kLimit = 1e-2;  // bf16 keeps 4e-3
    if (error <= kLimit) return true;
    TORCH_WARN("products of 8-bit floats with scales of rows and columns are off by ", error, " on ", device,
               "; their sums are scaled apart");
  } catch (const std::exception& problem) {
    TORCH_WARN("no products of 8-bit floats with scales of rows and columns on ", device,
               ", their sums are scaled apart: ", problem.what());
  }
  return false;
}

/// Whether `row_wise_product` works on this device and multiplies the right rows and columns: that depends on the card
/// and on how LibTorch was built. Tried on small numbers when the device is first met.
bool scales_rows(at::Device device, bool fast) {
  if (device.is_meta()) return true;  // a dry run of CUDA, where every card with products of 8-bit floats should
  if (!device.is_cuda()) return false;
  static std::mutex mutex;
  static std::map<std::pair<c10::DeviceIndex, bool>, bool> known;
  const std::lock_guard lock(mutex);
  const std::pair key(device.index(), fast);
  const auto it = known.find(key);
  return it != known.end() ? it->second : known.emplace(key, try_row_wise(device, fast)).first->second;
}

}  // namespace

bool fits(int64_t out, int64_t in, Code code) {
  const int64_t multiple = code == Code::int8 ? 8 : 16;
  return out > 0 && in > 0 && out % multiple == 0 && in % multiple == 0;
}

at::Tensor Shared::ones(int64_t count, at::Device device) {
  const auto make = [&] { return at::ones({count}, at::TensorOptions(device).dtype(at::kFloat)); };
  if (device.is_meta()) return make();  // in a plan: nothing that stays
  const std::lock_guard lock(mutex_);
  at::Tensor& known = ones_[device.index()];
  if (!known.defined() || known.size(0) < count) known = make();
  return known.narrow(0, 0, count);
}

at::Tensor scaled_product(const at::Tensor& x, const at::Tensor& factors, const at::Tensor& b,
                          const at::Tensor& channels, Shared& shared) {
  eight_bits::Rows rows = eight_bits::quantize_rows(x, factors, b.scalar_type());
  // cuBLASLt takes both operands along the sum: fp8 always, int8 on every card.
  const at::Tensor along = b.stride(0) == 1 ? b : eight_bits::transposed(b).t();
  const int64_t more = std::max<int64_t>(0, kFewestRows - x.size(0));
  if (more > 0) {  // padding by nothing would still copy
    rows.values = with_rows(rows.values, more);
    rows.scale = at::constant_pad_nd(rows.scale, std::array<int64_t, 4>{0, 0, 0, more}, 1);
  }
  const bool fast = shared.fast_accumulation;
  const bool at_once =
      x.scalar_type() == at::kBFloat16 && along.scalar_type() == at::kFloat8_e4m3fn && scales_rows(x.device(), fast);
  const auto columns = [&] { return channels.defined() ? channels : shared.ones(along.size(1), x.device()); };
  const at::Tensor y =
      at_once ? row_wise_product(rows, along, columns(), fast)
              : eight_bits::scale_sums(sums_of(rows.values, along, fast), rows.scale, channels, x.scalar_type());
  return more > 0 ? y.narrow(0, 0, x.size(0)) : y;
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b, bool fast_accumulation) {
  const int64_t rows = a.size(0), more = kFewestRows - rows;
  if (more > 0) return product(with_rows(a, more), b, fast_accumulation).narrow(0, 0, rows);
  return a.scalar_type() == at::kChar ? int8_sums(a, b).to(at::kFloat) : fp8_product(a, b, fast_accumulation);
}

}  // namespace trainer::w8a8
