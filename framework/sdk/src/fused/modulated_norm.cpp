/// @file Modulated LayerNorm: operators, gradient, plain form.
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <kernels/cpu.hpp>
#include <trainer/sdk/ops/fused.hpp>

#include <array>
#include <tuple>

#include "bindings.hpp"
#include "cuda.hpp"
#include "operators.hpp"
#include "twice.hpp"

namespace trainer {
namespace fused {
namespace {

using at::Tensor;
using Gradients = std::tuple<Tensor, Tensor, Tensor>;

/// shift or scale [B or 1, 1, d] with its last dimension dense.
Tensor dense_rows(const Tensor& modulation) {
  return modulation.stride(-1) == 1 ? modulation : modulation.contiguous();
}
int64_t step_of(const Tensor& modulation) { return modulation.size(0) == 1 ? 0 : modulation.stride(0); }

kernels::ModulatedNorm arguments(const Tensor& x, const Tensor& shift, const Tensor& scale, double eps) {
  return {dtype_of(x),
          x.size(0) * x.size(1),
          x.size(2),
          x.size(1),
          eps,
          x.const_data_ptr(),
          shift.defined() ? shift.const_data_ptr() : nullptr,
          scale.const_data_ptr(),
          shift.defined() ? step_of(shift) : 0,
          step_of(scale)};
}

Tensor modulated_norm_forward(const Tensor& x, const Tensor& shift, const Tensor& scale, double eps) {
  const Tensor dense = x.contiguous(), from = dense_rows(shift), factor = dense_rows(scale);
  Tensor y = at::empty(x.sizes(), x.options());
  if (y.is_meta() || y.numel() == 0) return y;
  const auto a = arguments(dense, from, factor, eps);
  void* const out = y.mutable_data_ptr();
  if (y.is_cuda())
    launch(y, [&](const auto& cuda, kernels::Stream stream) { return cuda.modulated_norm(&a, out, stream); });
  else
    for_units(a.rows, a.width,
              [&](int64_t begin, int64_t end) { kernels::cpu_kernels().modulated_norm(a, out, begin, end); });
  return y;
}

struct Results {
  void *grad_x, *moments, *grad_shift, *grad_scale;  ///< all but the first null when no sums are asked for
};

void on_cuda(const kernels::ModulatedNorm& a, const Tensor& grad, const Results& to) {
  const void* const from = grad.const_data_ptr();
  launch(grad, [&](const auto& cuda, kernels::Stream stream) {
    const int error = cuda.modulated_norm_grad(&a, from, to.grad_x, to.moments, stream);
    if (error != 0 || to.moments == nullptr) return error;
    return cuda.modulated_norm_sums(&a, from, to.moments, to.grad_shift, to.grad_scale, stream);
  });
}

void on_cpu(const kernels::ModulatedNorm& a, const Tensor& grad, const Results& to) {
  const kernels::CpuKernels& cpu = kernels::cpu_kernels();
  const void* const from = grad.const_data_ptr();
  for_units(a.rows, a.width,
            [&](int64_t begin, int64_t end) { cpu.modulated_norm_grad(a, from, to.grad_x, to.moments, begin, end); });
  if (to.moments == nullptr) return;
  const int64_t chunks = (a.width + kernels::kColumns - 1) / kernels::kColumns;
  for_units(a.rows / a.rows_per_sample * chunks, a.rows_per_sample * kernels::kColumns,
            [&](int64_t begin, int64_t end) {
              cpu.modulated_norm_sums(a, from, to.moments, to.grad_shift, to.grad_scale, begin, end);
            });
}

/// Gradients of x, shift and scale; those of the last two only when `sums`.
Gradients modulated_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& scale, double eps, bool sums) {
  const Tensor dense = x.contiguous(), factor = dense_rows(scale), grads = grad.contiguous();
  Tensor grad_x = at::empty(x.sizes(), x.options()), grad_shift, grad_scale, moments;
  if (sums) {
    const int64_t samples = x.size(0);
    grad_shift = at::empty({samples, 1, x.size(2)}, x.options());
    grad_scale = at::empty({samples, 1, x.size(2)}, x.options());
    moments = at::empty({x.size(0) * x.size(1), 2},
                        x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
  }
  if (!x.is_meta() && x.numel() > 0) {
    Results to{grad_x.mutable_data_ptr(), nullptr, nullptr, nullptr};
    if (sums)
      to = {to.grad_x, moments.mutable_data_ptr(), grad_shift.mutable_data_ptr(), grad_scale.mutable_data_ptr()};
    const auto a = arguments(dense, {}, factor, eps);
    x.is_cuda() ? on_cuda(a, grads, to) : on_cpu(a, grads, to);
  } else if (sums && !x.is_meta()) {
    grad_shift.zero_();
    grad_scale.zero_();
  }
  if (sums && scale.size(0) == 1 && x.size(0) != 1) {
    grad_shift = grad_shift.sum(0, /*keepdim=*/true);
    grad_scale = grad_scale.sum(0, /*keepdim=*/true);
  }
  return {grad_x, grad_shift, grad_scale};
}

Tensor call(const Tensor& x, const Tensor& shift, const Tensor& scale, double eps) {
  static const auto op =
      operator_of<Tensor(const Tensor&, const Tensor&, const Tensor&, double)>("trainer::modulated_norm");
  return op.call(x, shift, scale, eps);
}
Gradients call_backward(const Tensor& grad, const Tensor& x, const Tensor& scale, double eps, bool sums) {
  static const auto op = operator_of<Gradients(const Tensor&, const Tensor&, const Tensor&, double, bool)>(
      "trainer::modulated_norm_backward");
  return op.call(grad, x, scale, eps, sums);
}

Tensor by_operators(const Tensor& x, const Tensor& shift, const Tensor& scale, double eps) {
  return at::addcmul(shift, at::layer_norm(x, {x.size(-1)}, {}, {}, eps), scale + 1);
}

struct ModulatedNormFunction : torch::autograd::Function<ModulatedNormFunction> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const Tensor& shift,
                        const Tensor& scale, double eps) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({x, scale});
    ctx->saved_data["eps"] = eps;
    return call(x, shift, scale, eps);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    if (!grads[0].defined()) return torch::autograd::variable_list(4);
    const auto saved = ctx->get_saved_variables();
    const double eps = ctx->saved_data["eps"].toDouble();
    if (is_differentiated()) {
      // No derivative depends on the shift's numbers.
      const Tensor shift = at::zeros_like(saved[1]).requires_grad_(ctx->needs_input_grad(1));
      torch::autograd::variable_list found =
          plain_gradients([eps](const auto& in) { return by_operators(in[0], in[1], in[2], eps); },
                          {saved[0], shift, saved[1]}, grads[0]);
      found.emplace_back();
      return found;
    }
    const at::AutoDispatchBelowADInplaceOrView below;
    const bool sums = ctx->needs_input_grad(1) || ctx->needs_input_grad(2);
    auto [x, shift, scale] = call_backward(grads[0], saved[0], saved[1], eps, sums);
    return {x, shift, scale, Tensor()};
  }
};

bool is_modulation(const Tensor& modulation, const Tensor& x) {
  return modulation.dim() == 3 && modulation.size(1) == 1 && modulation.size(2) == x.size(2) &&
         (modulation.size(0) == 1 || modulation.size(0) == x.size(0)) && modulation.scalar_type() == x.scalar_type();
}

}  // namespace

void install_modulated_norm(torch::Library& library) {
  library.def("modulated_norm(Tensor x, Tensor shift, Tensor scale, float eps) -> Tensor");
  library.def(
      "modulated_norm_backward(Tensor grad, Tensor x, Tensor scale, float eps, bool sums) -> (Tensor, Tensor, Tensor)");
  for (const c10::DispatchKey key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA, c10::DispatchKey::Meta}) {
    library.impl("modulated_norm", torch::dispatch(key, &modulated_norm_forward));
    library.impl("modulated_norm_backward", torch::dispatch(key, &modulated_norm_backward));
  }
}

}  // namespace fused

at::Tensor modulated_norm(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale, double eps,
                          bool fused) {
  if (fused && fused::takes(x, fused::Family::modulated_norm) && x.dim() == 3 && fused::is_modulation(shift, x) &&
      fused::is_modulation(scale, x) && shift.size(0) == scale.size(0))
    return fused::ModulatedNormFunction::apply(x, shift, scale, eps);
  return fused::by_operators(x, shift, scale, eps);
}

}  // namespace trainer
