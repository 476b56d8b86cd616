/// @file See trainer/sdk/ops/products.hpp.
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/library.h>
#include <kernels/cpu.hpp>
#include <trainer/sdk/ops/products.hpp>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <new>

#include "fused/bindings.hpp"
#include "op_region.hpp"

namespace at::native::cpublas {
// LibTorch exports them for its own kernels.
TORCH_API void brgemm(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, bool add,
                      const at::BFloat16* a, const at::BFloat16* b, float* c, bool paired);
TORCH_API void brgemm_release(bool paired);
}  // namespace at::native::cpublas

namespace trainer {
namespace {

using at::Tensor;

/// oneDNN has products of pairs on a processor with AVX-512, unless the environment keeps it from them: then LibTorch
/// refuses, or oneDNN throws an error of its own.
bool multiplies_pairs() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16") == 0) return false;
  try {
    const std::array<at::BFloat16, 4> ones{1, 1, 1, 1};
    float sum = 0;
    at::native::cpublas::brgemm(1, 1, 2, 2, 1, 1, false, ones.data(), ones.data(), &sum, /*paired=*/true);
    at::native::cpublas::brgemm_release(true);
    return sum == 2;
  } catch (const std::exception&) {
    return false;
  }
#else
  return true;
#endif
}

kernels::Dtype dtype_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return kernels::Dtype::f32;
    case at::kBFloat16:
      return kernels::Dtype::bf16;
    case at::kDouble:
      return kernels::Dtype::f64;
    default:
      TORCH_CHECK(false, "multiply: fp32, bf16 or fp64, not ", tensor.scalar_type());
  }
}

kernels::Number number_of(const Tensor& codes) {
  switch (codes.scalar_type()) {
    case at::kFloat8_e4m3fn:
      return kernels::Number::e4m3;
    case at::kFloat8_e5m2:
      return kernels::Number::e5m2;
    case at::kChar:
      return kernels::Number::int8;
    default:
      TORCH_CHECK(false, "multiply_packed: e4m3, e5m2 or int8, not ", codes.scalar_type());
  }
}

/// As it lies, where rows or columns do so dense.
Tensor readable(const Tensor& tensor) {
  return tensor.stride(-1) == 1 || tensor.stride(-2) == 1 ? tensor : tensor.contiguous();
}

kernels::Matrix matrix_of(const Tensor& tensor) {
  const bool by_columns = tensor.stride(-1) != 1;
  return {tensor.const_data_ptr(), dtype_of(tensor), by_columns ? 1 : tensor.stride(-2),
          by_columns ? tensor.stride(-1) : 1, tensor.dim() == 3 ? tensor.stride(0) : 0};
}

kernels::Matrix base_of(const Tensor& base, const Tensor& result) {
  TORCH_CHECK(base.scalar_type() == result.scalar_type() && base.size(-1) == result.size(-1) && base.stride(-1) == 1 &&
                  (base.dim() == 1 || base.sizes() == result.sizes()),
              "multiply: ", base.scalar_type(), base.sizes(), " cannot be added to ", result.scalar_type(),
              result.sizes());
  return {base.const_data_ptr(), dtype_of(base), base.dim() == 1 ? 0 : base.stride(-2), 1,
          base.dim() == 3 ? base.stride(0) : 0};
}

/// A buffer of this thread that stays: products come by the thousand.
void* scratch(int64_t bytes) {
  struct Free {
    void operator()(void* memory) const { ::operator delete (memory, std::align_val_t{64}); }
  };
  thread_local std::unique_ptr<void, Free> memory;
  thread_local int64_t held = 0;
  if (bytes > held) {
    memory.reset(::operator new (static_cast<std::size_t>(bytes), std::align_val_t{64}));
    held = bytes;
  }
  return memory.get();
}

void run(kernels::Product& p) {
  constexpr double kOperationsAThread = 1 << 17;
  const double operations = 2.0 * static_cast<double>(p.batches * p.m * p.n) * static_cast<double>(p.k + 1);
  const bool alone = operations < 2 * kOperationsAThread || at::in_parallel_region();
  kernels::cut(p, alone ? 1 : at::get_num_threads());
  const int64_t units = kernels::product_units(p), bytes = kernels::product_bytes(p);
  const auto body = [&](int64_t begin, int64_t end) { kernels::cpu_kernels().product(p, scratch(bytes), begin, end); };
  if (alone) return body(0, units);
  const double unit = operations / static_cast<double>(units);
  at::parallel_for(0, units, static_cast<int64_t>(kOperationsAThread / unit) + 1, body);
}

}  // namespace

bool has_bf16_products() {
  static const bool there = multiplies_pairs();
  return there;
}

void multiply(const Tensor& a, const Tensor& b, const std::optional<Tensor>& base, double factor, Tensor& result) {
  TORCH_CHECK((a.dim() == 2 || a.dim() == 3) && b.dim() == a.dim() && result.dim() == a.dim() &&
                  a.size(-1) == b.size(-2) && result.size(-2) == a.size(-2) && result.size(-1) == b.size(-1) &&
                  a.size(0) == (a.dim() == 3 ? b.size(0) : a.size(0)) && result.size(0) == a.size(0) &&
                  result.stride(-1) == 1,
              "multiply: ", a.sizes(), " and ", b.sizes(), " do not make ", result.sizes());
  if (result.numel() == 0) return;
  const Tensor left = readable(a), right = readable(b);
  const bool batched = a.dim() == 3;
  kernels::Product p{batched ? a.size(0) : 1,
                     a.size(-2),
                     b.size(-1),
                     a.size(-1),
                     matrix_of(left),
                     matrix_of(right),
                     factor,
                     base ? base_of(*base, result) : kernels::Matrix{},
                     dtype_of(result),
                     result.mutable_data_ptr(),
                     result.stride(-2),
                     batched ? result.stride(0) : 0,
                     0,
                     0};
  const bool wide = p.type == kernels::Dtype::f64;
  TORCH_CHECK((p.a.dtype == kernels::Dtype::f64) == wide && (p.b.dtype == kernels::Dtype::f64) == wide,
              "multiply: fp64 with other types");
  run(p);
}

namespace {

Tensor packed_product(const Tensor& x, const Tensor& values, const Tensor& scale, int64_t block, bool turned) {
  const auto fits = [&] {
    if (x.dim() != 2 || values.dim() != 2 || scale.dim() != 2 || block <= 0) return false;
    return x.size(1) == values.size(turned ? 1 : 0) && scale.size(1) * block >= values.size(1) &&
           (scale.size(0) == 1 || scale.size(0) == values.size(0)) && values.is_contiguous() && scale.is_contiguous() &&
           scale.scalar_type() == at::kFloat && x.scalar_type() != at::kDouble;
  };
  TORCH_CHECK(fits(), "multiply_packed: ", x.scalar_type(), x.sizes(), turned ? " with the transpose of " : " with ",
              values.sizes(), ", dense, and ", scale.scalar_type(), scale.sizes(), ", one for ", block, " columns");
  const Tensor left = readable(x);
  Tensor result = at::empty({x.size(0), values.size(turned ? 0 : 1)}, x.options());
  count_flops(2.0 * static_cast<double>(result.numel() * x.size(1)));
  if (result.numel() == 0 || result.is_meta()) return result;
  const kernels::Codes codes{number_of(values),
                             values.size(1),
                             block,
                             static_cast<const uint8_t*>(values.const_data_ptr()),
                             scale.const_data_ptr<float>(),
                             scale.size(0) == 1 ? 0 : scale.size(1),
                             turned};
  kernels::Product p{1,
                     x.size(0),
                     result.size(1),
                     x.size(1),
                     matrix_of(left),
                     {},
                     1,
                     {},
                     dtype_of(result),
                     result.mutable_data_ptr(),
                     result.stride(0),
                     0,
                     0,
                     0};
  p.codes = &codes;
  run(p);
  return result;
}

}  // namespace

void fused::install_products(torch::Library& library) {
  library.def("multiply_packed(Tensor x, Tensor values, Tensor scale, int block, bool turned) -> Tensor");
  for (const c10::DispatchKey key : {c10::DispatchKey::CPU, c10::DispatchKey::Meta})
    library.impl("multiply_packed", torch::dispatch(key, &packed_product));
}

Tensor multiply_packed(const Tensor& x, const Tensor& values, const Tensor& scale, int64_t block, bool turned) {
  static const auto op = fused::operator_of<Tensor(const Tensor&, const Tensor&, const Tensor&, int64_t, bool)>(
      "trainer::multiply_packed");
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(x, values, scale, block, turned);
}

at::Tensor convolve(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, int64_t stride,
                    at::IntArrayRef padding) {
  TORCH_CHECK(x.dim() == 4 && weight.dim() == 4 && x.size(1) == weight.size(1) && padding.size() == 2 && stride > 0 &&
                  x.scalar_type() == weight.scalar_type() && x.scalar_type() != at::kDouble,
              "convolve: ", x.scalar_type(), x.sizes(), " with ", weight.scalar_type(), weight.sizes());
  const Tensor pixels = x.permute({0, 2, 3, 1}).contiguous(), kernel = weight.permute({0, 2, 3, 1}).contiguous();
  const auto count = [&](int64_t size, int64_t width, int64_t edge) { return (size + 2 * edge - width) / stride + 1; };
  const kernels::Patches patches{pixels.size(1),
                                 pixels.size(2),
                                 pixels.size(3),
                                 kernel.size(1),
                                 kernel.size(2),
                                 stride,
                                 padding[0],
                                 padding[1],
                                 count(pixels.size(1), kernel.size(1), padding[0]),
                                 count(pixels.size(2), kernel.size(2), padding[1]),
                                 pixels.stride(0),
                                 pixels.size(2) * pixels.size(3)};
  TORCH_CHECK(patches.out_height > 0 && patches.out_width > 0, "convolve: ", weight.sizes(), " is larger than ",
              x.sizes(), " with its padding");
  Tensor result = at::empty({x.size(0), patches.out_height, patches.out_width, weight.size(0)}, x.options());
  const int64_t terms = kernel.numel() / std::max<int64_t>(1, weight.size(0));
  kernels::Product p{1,
                     x.size(0) * patches.out_height * patches.out_width,
                     weight.size(0),
                     terms,
                     {pixels.const_data_ptr(), dtype_of(pixels), 0, 1, 0},
                     {kernel.const_data_ptr(), dtype_of(kernel), 1, terms, 0},
                     1,
                     bias ? base_of(*bias, result.flatten(0, 2)) : kernels::Matrix{},
                     dtype_of(result),
                     result.mutable_data_ptr(),
                     weight.size(0),
                     0,
                     0,
                     0,
                     &patches};
  if (result.numel() > 0) run(p);
  return result.permute({0, 3, 1, 2});
}

}  // namespace trainer
