/// @file silu(gate) up behind other rows: operators, gradient, plain form.
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <kernels/cpu.hpp>
#include <trainer/sdk/ops/fused.hpp>

#include "bindings.hpp"
#include "cuda.hpp"
#include "operators.hpp"
#include "twice.hpp"

namespace trainer {
namespace fused {
namespace {

using Maybe = std::optional<at::Tensor>;

at::Tensor by_operators(const at::Tensor& x) {
  const std::vector<at::Tensor> halves = x.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

kernels::SwiGlu arguments(const Rows& x, const void* before, int64_t before_width, int64_t before_step) {
  return {dtype_of(x.tensor), x.count, x.width / 2, before_width, x.data(), before, x.step, before_step};
}

at::Tensor swiglu_forward(const at::Tensor& x, const Maybe& before) {
  const bool joined = before.has_value() && before->defined();
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = x.size(-1) / 2 + (joined ? before->size(-1) : 0);
  at::Tensor y = at::empty(shape, x.options());
  const Rows rows(x), others(joined ? *before : x);
  if (y.is_meta() || y.numel() == 0) return y;
  const auto a = joined ? arguments(rows, others.data(), others.width, others.step) : arguments(rows, nullptr, 0, 0);
  void* const out = y.mutable_data_ptr();
  if (y.is_cuda())
    launch(y, [&](const auto& cuda, kernels::Stream stream) { return cuda.swiglu(&a, out, stream); });
  else
    for_units(rows.count, shape.back(),
              [&](int64_t begin, int64_t end) { kernels::cpu_kernels().swiglu(a, out, begin, end); });
  return y;
}

/// `grad` of the silu(gate) up part alone.
at::Tensor swiglu_backward(const at::Tensor& grad, const at::Tensor& x) {
  at::Tensor grad_x = at::empty(x.sizes(), x.options());
  const Rows rows(x), grads(grad);
  if (grad_x.is_meta() || grad_x.numel() == 0) return grad_x;
  const auto a = arguments(rows, nullptr, 0, 0);
  void* const out = grad_x.mutable_data_ptr();
  if (x.is_cuda())
    launch(x, [&](const auto& cuda, kernels::Stream stream) {
      return cuda.swiglu_grad(&a, grads.data(), grads.step, out, stream);
    });
  else
    for_units(rows.count, rows.width, [&](int64_t begin, int64_t end) {
      kernels::cpu_kernels().swiglu_grad(a, grads.data(), grads.step, out, begin, end);
    });
  return grad_x;
}

at::Tensor call(const at::Tensor& x, const at::Tensor& before) {
  static const auto op = operator_of<at::Tensor(const at::Tensor&, const Maybe&)>("trainer::swiglu");
  return op.call(x, before.defined() ? Maybe(before) : std::nullopt);
}
at::Tensor call_backward(const at::Tensor& grad, const at::Tensor& x) {
  static const auto op = operator_of<at::Tensor(const at::Tensor&, const at::Tensor&)>("trainer::swiglu_backward");
  return op.call(grad, x);
}

/// Inputs: x and, where there is one, `before`; a Function takes no undefined tensor.
struct SwiGluFunction : torch::autograd::Function<SwiGluFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, at::TensorList inputs) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor before = inputs.size() > 1 ? inputs[1] : at::Tensor();
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({inputs[0]});
    ctx->saved_data["before"] = before.defined() ? before.size(-1) : -1;
    return call(inputs[0], before);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const int64_t before = ctx->saved_data["before"].toInt();
    torch::autograd::variable_list result(before < 0 ? 1 : 2);
    if (!grads[0].defined()) return result;
    const at::Tensor x = ctx->get_saved_variables()[0];
    if (before >= 0 && ctx->needs_input_grad(1)) result[1] = grads[0].narrow(-1, 0, before);
    if (!ctx->needs_input_grad(0)) return result;
    const at::Tensor grad = grads[0].narrow(-1, before < 0 ? 0 : before, x.size(-1) / 2);
    if (is_differentiated()) {
      result[0] = plain_gradients([](const auto& in) { return by_operators(in[0]); }, {x}, grad)[0];
      return result;
    }
    const at::AutoDispatchBelowADInplaceOrView below;
    result[0] = call_backward(grad, x);
    return result;
  }
};

}  // namespace

void install_swiglu(torch::Library& library) {
  library.def("swiglu(Tensor x, Tensor? before) -> Tensor");
  library.def("swiglu_backward(Tensor grad, Tensor x) -> Tensor");
  for (const c10::DispatchKey key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA, c10::DispatchKey::Meta}) {
    library.impl("swiglu", torch::dispatch(key, &swiglu_forward));
    library.impl("swiglu_backward", torch::dispatch(key, &swiglu_backward));
  }
}

}  // namespace fused

at::Tensor swiglu(const at::Tensor& x, const at::Tensor& before, bool fused) {
  TORCH_CHECK(x.dim() > 0 && x.size(-1) % 2 == 0, "swiglu takes gate and up side by side, an even number of columns");
  if (fused && fused::takes(x, fused::Family::swiglu) &&
      (!before.defined() || before.scalar_type() == x.scalar_type())) {
    std::vector<at::Tensor> inputs{x};
    if (before.defined()) inputs.push_back(before);
    return fused::SwiGluFunction::apply(at::TensorList(inputs));
  }
  const at::Tensor y = fused::by_operators(x);
  return before.defined() ? at::cat({before, y}, -1) : y;
}

}  // namespace trainer
