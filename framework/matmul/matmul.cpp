#include <ATen/Context.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/convolution_backward_native.h>
#include <ATen/ops/convolution_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <torch/library.h>
#include <matmul/attention.hpp>
#include <matmul/matmul.hpp>
#include <trainer/sdk/ops/products.hpp>

#include <algorithm>
#include <memory>

namespace at::native {
// LibTorch exports it and takes it for bf16 itself; its header is not installed. result = alpha mat1 mat2 + beta
// result.
TORCH_API void mkldnn_matmul(const Tensor& mat1, const Tensor& mat2, const Tensor& result, float beta, float alpha);
}  // namespace at::native

namespace trainer::matmul {
namespace {

using at::Tensor;

/// Below this oneDNN's fixed cost shows (ADR 8).
constexpr int64_t kLeastRows = 32, kLeastColumns = 16;

Library& chosen() {
  static Library library = Library::mkl;
  return library;
}

/// A matrix, or a batch of them, without gaps, as it is or transposed: others would be copied, which no plan counts.
bool is_dense(const Tensor& t) {
  const int64_t rows = t.size(-2), columns = t.size(-1);
  const bool by_rows = t.stride(-1) == 1 && t.stride(-2) == columns;
  const bool by_columns = t.stride(-2) == 1 && t.stride(-1) == rows;
  return (by_rows || by_columns) && (t.dim() == 2 || t.size(0) == 1 || t.stride(0) == rows * columns);
}

bool takes(const Tensor& t, int64_t dim) {
  return used() == Library::onednn && t.scalar_type() == at::kFloat && t.is_cpu() && t.layout() == c10::kStrided &&
         t.dim() == dim && !t.is_neg() && is_dense(t);
}

/// False also for shapes that do not fit together, so that LibTorch words the error.
bool takes(const Tensor& a, const Tensor& b, int64_t dim) {
  return takes(a, dim) && takes(b, dim) && a.size(-1) == b.size(-2) && a.size(0) >= (dim == 2 ? kLeastRows : 1) &&
         a.size(-2) >= kLeastRows && a.size(-1) >= kLeastColumns && b.size(-1) >= kLeastColumns &&
         (dim == 2 || a.size(0) == b.size(0));
}

/// Below AVX-512 LibTorch keeps even fp32 from oneDNN: then `onednn` is our panels.
bool onednn_is_there() {
  static const bool there = [] {
    try {
      const Tensor one = at::ones({1, 1}), result = at::empty({1, 1});
      at::native::mkldnn_matmul(one, one, result, 0, 1);
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }();
  return there;
}

bool is_bf16(const Tensor& t, int64_t dim) {
  return t.scalar_type() == at::kBFloat16 && t.is_cpu() && t.layout() == c10::kStrided && t.dim() == dim && !t.is_neg();
}
/// bf16 on a processor that does not multiply it: every product that fits together.
bool takes_bf16(const Tensor& a, const Tensor& b, int64_t dim) {
  return !has_bf16_products() && is_bf16(a, dim) && is_bf16(b, dim) && a.size(-1) == b.size(-2) &&
         (dim == 2 || a.size(0) == b.size(0));
}

Tensor product(const Tensor& a, const Tensor& b) {
  Tensor result = a.dim() == 2 ? at::empty({a.size(0), b.size(1)}, a.options())
                               : at::empty({a.size(0), a.size(1), b.size(2)}, a.options());
  if (a.scalar_type() == at::kFloat && onednn_is_there())
    at::native::mkldnn_matmul(a, b, result, 0, 1);
  else
    multiply(a, b, std::nullopt, 1, result);
  return result;
}

Tensor mm(const Tensor& a, const Tensor& b) {
  return takes_bf16(a, b, 2) || takes(a, b, 2) ? product(a, b) : at::cpu::mm(a, b);
}

Tensor bmm(const Tensor& a, const Tensor& b) {
  return takes_bf16(a, b, 3) || takes(a, b, 3) ? product(a, b) : at::cpu::bmm(a, b);
}

Tensor addmm(const Tensor& added, const Tensor& a, const Tensor& b, const at::Scalar& beta, const at::Scalar& alpha) {
  const bool taken = takes_bf16(a, b, 2) || takes(a, b, 2);
  const bool suits = taken && added.scalar_type() == a.scalar_type() && added.is_cpu() && added.dim() <= 2 &&
                     !beta.isComplex() && !alpha.isComplex();
  // With an alpha of 0 oneDNN's call returns before it scales; with a beta of 0 what is added must not be read.
  if (!suits || beta.toDouble() == 0 || alpha.toDouble() == 0) return at::cpu::addmm(added, a, b, beta, alpha);
  const bool library = a.scalar_type() == at::kFloat && onednn_is_there();
  if (!library && beta.toDouble() != 1) return at::cpu::addmm(added, a, b, beta, alpha);
  Tensor result = at::empty({a.size(0), b.size(1)}, a.options());
  if (library) {
    result.copy_(added);
    at::native::mkldnn_matmul(a, b, result, beta.to<float>(), alpha.to<float>());
  } else {
    // What multiply() reads as it is; else, as one number for all, it is laid out first.
    const bool readable = added.dim() > 0 && added.stride(-1) == 1 && added.size(-1) == result.size(1) &&
                          (added.dim() == 1 || added.sizes() == result.sizes());
    multiply(a, b, readable ? added : result.copy_(added), alpha.toDouble(), result);
  }
  return result;
}

/// The arguments that LibTorch's own convolution and its backward share.
struct Convolved {
  at::IntArrayRef stride, padding, dilation;
  bool transposed;
  at::IntArrayRef output_padding;
  int64_t groups;
};
bool takes_bf16(const Tensor& x, const Tensor& weight, const Convolved& c) {
  const auto all = [](at::IntArrayRef list, int64_t value) {
    return std::all_of(list.begin(), list.end(), [&](int64_t one) { return one == value; });
  };
  return is_bf16(x, 4) && is_bf16(weight, 4) && !c.transposed && c.groups == 1 && all(c.dilation, 1) &&
         all(c.stride, c.stride[0]) && x.size(1) == weight.size(1);
}

Tensor convolution(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, at::IntArrayRef stride,
                   at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
                   int64_t groups) {
  const bool biased = bias.has_value() && bias->defined();
  if ((biased && bias->scalar_type() != at::kBFloat16) ||
      !takes_bf16(x, weight, {stride, padding, dilation, transposed, output_padding, groups}))
    return at::native::convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
  // One number stands for both sides.
  return convolve(x, weight, biased ? bias : std::nullopt, stride[0], {padding.front(), padding.back()});
}

/// Of fp32 copies: nothing that is trained here convolves.
std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                                        at::OptionalIntArrayRef bias_sizes, at::IntArrayRef stride,
                                                        at::IntArrayRef padding, at::IntArrayRef dilation,
                                                        bool transposed, at::IntArrayRef output_padding, int64_t groups,
                                                        std::array<bool, 3> wanted) {
  const bool ours = takes_bf16(x, weight, {stride, padding, dilation, transposed, output_padding, groups});
  const auto wide = [&](const Tensor& t) { return ours ? t.to(at::kFloat) : t; };
  const auto narrow = [&](const Tensor& t) { return ours && t.defined() ? t.to(at::kBFloat16) : t; };
  const auto [of_x, of_weight, of_bias] =
      at::native::convolution_backward(wide(grad), wide(x), wide(weight), bias_sizes, stride, padding, dilation,
                                       transposed, output_padding, groups, wanted);
  return {narrow(of_x), narrow(of_weight), narrow(of_bias)};
}

/// Registering over LibTorch's kernels is meant: no warning about it.
class Quiet final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

/// LibTorch's own kernels come back when it is destroyed.
std::unique_ptr<torch::Library>& registered() {
  static std::unique_ptr<torch::Library> library;
  return library;
}

}  // namespace

Library suited() {
#if defined(__x86_64__)
  const bool wider = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                     __builtin_cpu_is("intel") == 0;
  if (wider && at::Context::hasMKLDNN() && at::Context::hasMKL()) return Library::onednn;
#endif
  return Library::mkl;
}

void use(Library library) {
  chosen() = library;
  if (in_use()) return;
  Quiet quiet;
  const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  registered() =
      std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  registered()->impl("mm", &mm);
  registered()->impl("addmm", &addmm);
  registered()->impl("bmm", &bmm);
  if (!has_bf16_products()) {
    registered()->impl("convolution", &convolution);
    registered()->impl("convolution_backward", &convolution_backward);
  }
  register_attention(*registered());
}

Library used() { return chosen(); }

bool in_use() { return registered() != nullptr; }

void use_libtorchs() {
  chosen() = Library::mkl;
  registered().reset();
}

std::string name_of(Library library) { return library == Library::mkl ? "mkl" : "onednn"; }

}  // namespace trainer::matmul
