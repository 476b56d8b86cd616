/// @file RMSNorm and rotation of queries or keys: operators, gradient, plain form.
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
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

using at::Tensor;

/// [B, S, H, D] with the heads of a token side by side; a copy if need be.
Tensor tokens_of(const Tensor& x) {
  return x.stride(3) == 1 && (x.size(2) == 1 || x.stride(2) == x.size(3)) ? x : x.contiguous();
}

int64_t total_tokens(const std::vector<Tensor>& parts) {
  int64_t tokens = 0;
  for (const Tensor& part : parts) tokens += part.size(1);
  return tokens;
}

/// `turned`: the result or its gradient [B, S, H, D]; `first`: the place of x's tokens in it.
kernels::NormRope arguments(const Tensor& x, const Tensor& weight, const Tensor& table, const Tensor& turned,
                            int64_t first, double eps) {
  return {dtype_of(x),
          x.size(0),
          x.size(1),
          x.size(2),
          x.size(3),
          eps,
          x.const_data_ptr(),
          weight.const_data_ptr(),
          table.const_data_ptr<float>() + first * x.size(3),
          x.stride(0),
          x.stride(1),
          turned.stride(0),
          turned.stride(1),
          table.size(0) == 1 ? 0 : table.stride(0)};
}

/// Where the tokens from `first` on begin.
void* at_token(Tensor& turned, int64_t first) {
  return static_cast<char*>(turned.mutable_data_ptr()) + first * turned.stride(1) * turned.element_size();
}
const void* at_token(const Tensor& turned, int64_t first) {
  return static_cast<const char*>(turned.const_data_ptr()) + first * turned.stride(1) * turned.element_size();
}

Tensor norm_rope_forward(at::TensorList parts, at::TensorList weights, const Tensor& table, double eps) {
  const std::vector<Tensor> all = parts.vec();
  const Tensor& one = all.front();
  Tensor y = at::empty({one.size(0), total_tokens(all), one.size(2), one.size(3)}, one.options());
  const Tensor angles = table.contiguous();
  int64_t first = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Tensor x = tokens_of(all[i]), weight = weights[i].contiguous();
    if (!y.is_meta() && x.numel() > 0) {
      const auto a = arguments(x, weight, angles, y, first, eps);
      void* const out = at_token(y, first);
      if (y.is_cuda())
        launch(y, [&](const auto& cuda, kernels::Stream stream) { return cuda.norm_rope(&a, out, stream); });
      else
        for_units(a.samples * a.tokens, a.heads * a.width,
                  [&](int64_t begin, int64_t end) { kernels::cpu_kernels().norm_rope(a, out, begin, end); });
    }
    first += x.size(1);
  }
  return y;
}

/// Gradient of a weight: partial sums of a fixed number of tokens, then their sum.
Tensor weight_gradient(const kernels::NormRope& a, const void* grad, const Tensor& weight) {
  const int64_t units = (a.samples * a.tokens + kernels::kTokens - 1) / kernels::kTokens;
  const auto sums = weight.options().dtype(weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  Tensor partial = at::empty({units, a.width}, sums);
  void* const out = partial.is_meta() ? nullptr : partial.mutable_data_ptr();
  if (partial.is_cuda())
    launch(partial,
           [&](const auto& cuda, kernels::Stream stream) { return cuda.norm_rope_sums(&a, grad, out, stream); });
  else if (!partial.is_meta())
    for_units(units, kernels::kTokens * a.heads * a.width,
              [&](int64_t begin, int64_t end) { kernels::cpu_kernels().norm_rope_sums(a, grad, out, begin, end); });
  return partial.sum(0).to(weight.scalar_type());
}

void part_gradient(const kernels::NormRope& a, const void* grad, Tensor& grad_x) {
  void* const out = grad_x.mutable_data_ptr();
  if (grad_x.is_cuda())
    launch(grad_x,
           [&](const auto& cuda, kernels::Stream stream) { return cuda.norm_rope_grad(&a, grad, out, stream); });
  else
    for_units(a.samples * a.tokens, a.heads * a.width,
              [&](int64_t begin, int64_t end) { kernels::cpu_kernels().norm_rope_grad(a, grad, out, begin, end); });
}

/// Gradients of the parts, then of the weights when `sums`.
std::vector<Tensor> norm_rope_backward(const Tensor& grad, at::TensorList parts, at::TensorList weights,
                                       const Tensor& table, double eps, bool sums) {
  const Tensor grads = tokens_of(grad), angles = table.contiguous();
  std::vector<Tensor> result, weight_gradients;
  int64_t first = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Tensor part = parts[i], x = tokens_of(part), weight = weights[i].contiguous();
    Tensor grad_x = at::empty(part.sizes(), part.options());
    kernels::NormRope a{};
    const void* from = nullptr;
    if (!part.is_meta()) {
      a = arguments(x, weight, angles, grads, first, eps);
      from = at_token(grads, first);
      if (x.numel() > 0) part_gradient(a, from, grad_x);
    }
    a.samples = x.size(0), a.tokens = x.size(1), a.width = x.size(3);
    if (sums) weight_gradients.push_back(weight_gradient(a, from, weights[i]));
    result.push_back(std::move(grad_x));
    first += part.size(1);
  }
  for (Tensor& one : weight_gradients) result.push_back(std::move(one));
  return result;
}

Tensor call(at::TensorList parts, at::TensorList weights, const Tensor& table, double eps) {
  static const auto op =
      operator_of<Tensor(at::TensorList, at::TensorList, const Tensor&, double)>("trainer::norm_rope");
  return op.call(parts, weights, table, eps);
}
std::vector<Tensor> call_backward(const Tensor& grad, at::TensorList parts, at::TensorList weights, const Tensor& table,
                                  double eps, bool sums) {
  static const auto op =
      operator_of<std::vector<Tensor>(const Tensor&, at::TensorList, at::TensorList, const Tensor&, double, bool)>(
          "trainer::norm_rope_backward");
  return op.call(grad, parts, weights, table, eps, sums);
}

/// Rotates the adjacent pairs of x [B, S, H, D], in fp32 (fp64 for fp64).
Tensor turned(const Tensor& x, const Tensor& table) {
  const at::ScalarType computed = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  // (x0 + i x1)(cos + i sin): one multiplication instead of two products, a swap and a sum.
  const Tensor pairs = at::view_as_complex(x.to(computed).unflatten(-1, {-1, 2}));
  const Tensor result = pairs * at::view_as_complex(table.to(computed)).unsqueeze(2);
  return at::view_as_real(result).flatten(-2).to(x.scalar_type());
}

Tensor by_operators(const std::vector<Tensor>& x, const std::vector<Tensor>& weights, const Tensor& table, double eps) {
  std::vector<Tensor> normal;
  for (std::size_t i = 0; i < x.size(); ++i) normal.push_back(at::rms_norm(x[i], {x[i].size(-1)}, weights[i], eps));
  return turned(normal.size() == 1 ? normal[0] : at::cat(normal, 1), table);
}

struct NormRopeFunction : torch::autograd::Function<NormRopeFunction> {
  /// `inputs`: the parts, then as many weights.
  static Tensor forward(torch::autograd::AutogradContext* ctx, at::TensorList inputs, const Tensor& table, double eps) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->set_materialize_grads(false);
    std::vector<Tensor> saved = inputs.vec();
    saved.push_back(table);
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["eps"] = eps;
    const std::size_t parts = inputs.size() / 2;
    return call(inputs.slice(0, parts), inputs.slice(parts), table, eps);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const std::size_t inputs = saved.size() - 1, parts = inputs / 2;
    torch::autograd::variable_list result(inputs + 2);
    if (!grads[0].defined()) return result;
    const double eps = ctx->saved_data["eps"].toDouble();
    if (is_differentiated()) {
      const auto plain = [&](const std::vector<Tensor>& in) {
        const auto middle = in.begin() + static_cast<std::ptrdiff_t>(parts);
        return by_operators({in.begin(), middle}, {middle, in.end()}, saved.back(), eps);
      };
      result = plain_gradients(plain, {saved.begin(), saved.end() - 1}, grads[0]);
      result.resize(inputs + 2);
      return result;
    }
    const at::AutoDispatchBelowADInplaceOrView below;
    bool sums = false;
    for (std::size_t i = parts; i < inputs; ++i) sums = sums || ctx->needs_input_grad(i);
    const at::TensorList all(saved);
    std::vector<Tensor> found =
        call_backward(grads[0], all.slice(0, parts), all.slice(parts, parts), saved.back(), eps, sums);
    for (std::size_t i = 0; i < found.size(); ++i) result[i] = std::move(found[i]);
    return result;
  }
};

bool takes_all(const std::vector<Tensor>& x, const std::vector<Tensor>& weights, const Tensor& table) {
  for (std::size_t i = 0; i < x.size(); ++i)
    if (!takes(x[i], Family::norm_rope) || x[i].scalar_type() != x[0].scalar_type() ||
        weights[i].scalar_type() != x[0].scalar_type())
      return false;
  return table.scalar_type() == at::kFloat && !table.requires_grad();
}

}  // namespace

void install_norm_rope(torch::Library& library) {
  library.def("norm_rope(Tensor[] x, Tensor[] weights, Tensor table, float eps) -> Tensor");
  library.def(
      "norm_rope_backward(Tensor grad, Tensor[] x, Tensor[] weights, Tensor table, float eps, bool sums) -> Tensor[]");
  for (const c10::DispatchKey key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA, c10::DispatchKey::Meta}) {
    library.impl("norm_rope", torch::dispatch(key, &norm_rope_forward));
    library.impl("norm_rope_backward", torch::dispatch(key, &norm_rope_backward));
  }
}

}  // namespace fused

at::Tensor norm_rope(const std::vector<at::Tensor>& x, const std::vector<at::Tensor>& weights, const at::Tensor& table,
                     double eps, bool fused) {
  TORCH_CHECK(!x.empty() && x.size() == weights.size(), "norm_rope takes one weight for each stream");
  int64_t tokens = 0;
  for (const at::Tensor& part : x) {
    TORCH_CHECK(part.dim() == 4 && part.size(3) % 2 == 0, "norm_rope takes [B, S, H, D] with an even D");
    tokens += part.size(1);
  }
  TORCH_CHECK(table.dim() == 4 && table.size(1) == tokens && table.size(2) * 2 == x[0].size(3),
              "norm_rope: the table has the angles of ", table.size(1), " tokens, there are ", tokens);
  if (fused && fused::takes_all(x, weights, table)) {
    std::vector<at::Tensor> inputs = x;
    inputs.insert(inputs.end(), weights.begin(), weights.end());
    return fused::NormRopeFunction::apply(at::TensorList(inputs), table, eps);
  }
  return fused::by_operators(x, weights, table, eps);
}

}  // namespace trainer
