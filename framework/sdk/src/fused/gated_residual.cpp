/// @file x + gate y: operators, gradient, plain form.
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <kernels/cpu.hpp>
#include <trainer/sdk/ops/fused.hpp>

#include <tuple>

#include "bindings.hpp"
#include "cuda.hpp"
#include "twice.hpp"

namespace trainer {
namespace fused {
namespace {

using at::Tensor;
using Maybe = std::optional<Tensor>;
using Gradients = std::tuple<Tensor, Tensor>;

/// gate [B or 1, 1, d] with its last dimension dense.
Tensor dense_rows(const Tensor& gate) { return gate.stride(-1) == 1 ? gate : gate.contiguous(); }

/// x and y [B, S, d] dense, or undefined.
kernels::GatedResidual arguments(const Tensor& shape, const Tensor& x, const Tensor& gate, const Tensor& y) {
  const auto data = [](const Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; };
  return {dtype_of(shape), shape.size(0) * shape.size(1),         shape.size(2), shape.size(1), data(x), data(gate),
          data(y),         gate.size(0) == 1 ? 0 : gate.stride(0)};
}

Tensor gated_residual_forward(const Tensor& x, const Tensor& gate, const Tensor& y) {
  const Tensor base = x.contiguous(), factor = dense_rows(gate), added = y.contiguous();
  Tensor sum = at::empty(x.sizes(), x.options());
  if (sum.is_meta() || sum.numel() == 0) return sum;
  const auto a = arguments(sum, base, factor, added);
  void* const out = sum.mutable_data_ptr();
  if (sum.is_cuda())
    launch(sum, [&](const auto& cuda, kernels::Stream stream) { return cuda.gated_residual(&a, out, stream); });
  else
    for_units(a.rows, a.width,
              [&](int64_t begin, int64_t end) { kernels::cpu_kernels().gated_residual(a, out, begin, end); });
  return sum;
}

/// The sum over the rows of every sample of grad y, [B, 1, d].
Tensor gate_gradient(const Tensor& grad, const Tensor& gate, const Tensor& y) {
  const Tensor added = y.contiguous();
  Tensor result = at::empty({grad.size(0), 1, grad.size(2)}, grad.options());
  if (result.is_meta()) return result;
  if (grad.numel() == 0) return result.zero_();
  const auto a = arguments(grad, {}, gate, added);
  const void* const from = grad.const_data_ptr();
  void* const out = result.mutable_data_ptr();
  if (grad.is_cuda())
    launch(grad,
           [&](const auto& cuda, kernels::Stream stream) { return cuda.gated_residual_sums(&a, from, out, stream); });
  else
    for_units(
        grad.size(0) * ((a.width + kernels::kColumns - 1) / kernels::kColumns), a.rows_per_sample * kernels::kColumns,
        [&](int64_t begin, int64_t end) { kernels::cpu_kernels().gated_residual_sums(a, from, out, begin, end); });
  return result;
}

/// Gradients of y and, where y is given, of the gate.
Gradients gated_residual_backward(const Tensor& grad, const Tensor& gate, const Maybe& y) {
  const Tensor grads = grad.contiguous(), factor = dense_rows(gate);
  Tensor grad_y = at::empty(grad.sizes(), grad.options()), grad_gate;
  if (!grad.is_meta() && grad.numel() > 0) {
    const auto a = arguments(grads, {}, factor, {});
    const void* const from = grads.const_data_ptr();
    void* const out = grad_y.mutable_data_ptr();
    if (grad.is_cuda())
      launch(grad,
             [&](const auto& cuda, kernels::Stream stream) { return cuda.gated_residual_grad(&a, from, out, stream); });
    else
      for_units(a.rows, a.width, [&](int64_t begin, int64_t end) {
        kernels::cpu_kernels().gated_residual_grad(a, from, out, begin, end);
      });
  }
  if (y.has_value()) grad_gate = gate_gradient(grads, factor, *y);
  if (grad_gate.defined() && gate.size(0) == 1 && grad.size(0) != 1) grad_gate = grad_gate.sum(0, /*keepdim=*/true);
  return {grad_y, grad_gate};
}

Tensor call(const Tensor& x, const Tensor& gate, const Tensor& y) {
  static const auto op = operator_of<Tensor(const Tensor&, const Tensor&, const Tensor&)>("trainer::gated_residual");
  return op.call(x, gate, y);
}
Gradients call_backward(const Tensor& grad, const Tensor& gate, const Maybe& y) {
  static const auto op =
      operator_of<Gradients(const Tensor&, const Tensor&, const Maybe&)>("trainer::gated_residual_backward");
  return op.call(grad, gate, y);
}

/// y is saved where the gate is trained; x never.
struct GatedResidualFunction : torch::autograd::Function<GatedResidualFunction> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const Tensor& gate, const Tensor& y) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->set_materialize_grads(false);
    ctx->save_for_backward(gate.requires_grad() ? torch::autograd::variable_list{gate, y}
                                                : torch::autograd::variable_list{gate});
    return call(x, gate, y);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    if (!grads[0].defined()) return torch::autograd::variable_list(3);
    const auto saved = ctx->get_saved_variables();
    const bool gated = ctx->needs_input_grad(1);
    if (!gated && !ctx->needs_input_grad(2)) return {grads[0], Tensor(), Tensor()};
    if (is_differentiated()) {
      Tensor grad_gate;
      if (gated) grad_gate = (grads[0] * saved[1]).sum(1, /*keepdim=*/true);
      if (gated && saved[0].size(0) == 1) grad_gate = grad_gate.sum(0, /*keepdim=*/true);
      return {grads[0], grad_gate, grads[0] * saved[0]};
    }
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [grad_y, grad_gate] = call_backward(grads[0], saved[0], gated ? Maybe(saved[1]) : std::nullopt);
    return {grads[0], grad_gate, grad_y};
  }
};

bool takes_all(const Tensor& x, const Tensor& gate, const Tensor& y) {
  return takes(x, Family::gated_residual) && x.dim() == 3 && y.sizes() == x.sizes() && gate.dim() == 3 &&
         gate.size(1) == 1 && gate.size(2) == x.size(2) && (gate.size(0) == 1 || gate.size(0) == x.size(0)) &&
         gate.scalar_type() == x.scalar_type() && y.scalar_type() == x.scalar_type() && gate.device() == x.device() &&
         y.device() == x.device();
}

}  // namespace

void install_gated_residual(torch::Library& library) {
  library.def("gated_residual(Tensor x, Tensor gate, Tensor y) -> Tensor");
  library.def("gated_residual_backward(Tensor grad, Tensor gate, Tensor? y) -> (Tensor, Tensor)");
  for (const c10::DispatchKey key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA, c10::DispatchKey::Meta}) {
    library.impl("gated_residual", torch::dispatch(key, &gated_residual_forward));
    library.impl("gated_residual_backward", torch::dispatch(key, &gated_residual_backward));
  }
}

}  // namespace fused

at::Tensor gated_residual(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y, bool fused) {
  if (fused && fused::takes_all(x, gate, y)) return fused::GatedResidualFunction::apply(x, gate, y);
  return at::addcmul(x, gate, y);
}

}  // namespace trainer
