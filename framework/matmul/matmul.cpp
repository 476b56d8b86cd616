#include <ATen/Context.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <torch/library.h>
#include <matmul/attention.hpp>
#include <matmul/matmul.hpp>
#include <trainer/sdk/ops/products.hpp>

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
  return used() == Library::onednn && t.scalar_type() == at::kFloat && t.is_cpu() &&
         t.layout() == c10::kStrided && t.dim() == dim && !t.is_neg() &&
         is_dense(t);
}

/// False also for shapes that do not fit together, so that LibTorch words the error.
bool takes(const Tensor& a, const Tensor& b, int64_t dim) {
  return takes(a, dim) && takes(b, dim) && a.size(-1) == b.size(-2) && a.size(0) >= (dim == 2 ? kLeastRows : 1) &&
         a.size(-2) >= kLeastRows && a.size(-1) >= kLeastColumns && b.size(-1) >= kLeastColumns &&
         (dim == 2 || a.size(0) == b.size(0));
}

/// Below AVX-512 LibTorch keeps even fp32 from oneDNN: then `onednn` is our panels, which are as fast.
bool onednn_is_there() {
  static const bool there = [] {
    try {
      const Tensor one = at::ones({1, 1}), result = at::empty({1, 1});
      at::native::mkldnn_matmul(one, one, result, 0, 1);
      return true;
    } catch (const c10::Error&) {
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
  Tensor result = at::empty({a.size(0), b.size(1)}, a.options());
  result.copy_(added);
  if (a.scalar_type() == at::kFloat && onednn_is_there())
    at::native::mkldnn_matmul(a, b, result, beta.to<float>(), alpha.to<float>());
  else
    multiply(a, b, result, alpha.toDouble(), beta.toDouble() == 1 ? result : result.mul_(beta));
  return result;
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
  const bool ours = library == Library::onednn || !has_bf16_products();
  if (ours == (registered() != nullptr)) return;
  registered().reset();
  if (!ours) return;
  Quiet quiet;
  const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  registered() =
      std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  registered()->impl("mm", &mm);
  registered()->impl("addmm", &addmm);
  registered()->impl("bmm", &bmm);
  register_attention(*registered());
}

Library used() { return chosen(); }

bool widens() { return registered() != nullptr && !has_bf16_products(); }

void use_libtorchs() {
  chosen() = Library::mkl;
  registered().reset();
}

std::string name_of(Library library) { return library == Library::mkl ? "mkl" : "onednn"; }

}  // namespace trainer::matmul
