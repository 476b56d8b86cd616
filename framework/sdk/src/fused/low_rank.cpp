/// @file What a low-rank adapter adds to a layer: operators of its three products, gradient, plain form. The operators
/// are heavy ones (heavy_kernels.cpp): they take the place of matrix products.
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <trainer/sdk/ops/fused.hpp>
#include <trainer/sdk/ops/products.hpp>

#include <trainer/sdk/dry_devices.hpp>
#include "bindings.hpp"
#include "low_rank.hpp"
#include "low_rank_parts.hpp"
#include "operators.hpp"
#include "twice.hpp"

namespace trainer {
namespace fused {
namespace {

using at::Tensor;
using Maybe = std::optional<Tensor>;

/// On a dry device that stands for CUDA: what by_parts allocates beside a result, so many numbers in parts and in sums.
void allocate_parts(const Tensor& data, int64_t parts, int64_t sums) {
  if (data.scalar_type() != at::kBFloat16) return;
  const Tensor both[] = {at::empty({kernels::Bf16Parts::kSlots * parts}, data.options()),
                         at::empty({kernels::Bf16Parts::kSlots * sums}, data.options().dtype(at::kFloat))};
}

/// low [rows, rank] = factor x weight^T, in the weight's dtype; x [rows, width], weight [rank, width].
Tensor down(const Tensor& x, const Tensor& weight, double factor) {
  if (x.is_cuda()) return by_parts::down(x, weight, factor);
  if (stands_for_cuda(x)) {
    allocate_parts(x, weight.numel(), x.size(0) * weight.size(0));
    return at::empty({x.size(0), weight.size(0)}, weight.options());
  }
  Tensor low = at::empty({x.size(0), weight.size(0)}, weight.options());
  if (!low.is_meta()) multiply(x, weight.t(), std::nullopt, factor, low);
  return low;
}

/// y [rows, width] = base + factor low weight in `dtype`; weight [rank, width].
Tensor up(const Tensor& low, const Tensor& weight, const Maybe& base, double factor, at::ScalarType dtype) {
  if (low.is_cuda()) return by_parts::up(low, weight, base, factor, dtype);
  if (stands_for_cuda(low)) {
    Tensor y = at::empty({low.size(0), weight.size(1)}, low.options().dtype(dtype));
    allocate_parts(y, low.numel() + weight.numel(), 0);
    return y;
  }
  Tensor y = at::empty({low.size(0), weight.size(1)}, low.options().dtype(dtype));
  if (!y.is_meta()) multiply(low, weight, base ? std::optional(Rows(*base).tensor) : std::nullopt, factor, y);
  return y;
}

/// grad_weight [rank, width] = factor low^T x.
Tensor outer(const Tensor& low, const Tensor& x, double factor) {
  if (x.is_cuda()) return by_parts::outer(low, x, factor);
  if (stands_for_cuda(x)) {
    allocate_parts(x, low.numel(), low.size(1) * x.size(1));
    return at::empty({low.size(1), x.size(1)}, low.options());
  }
  Tensor grad = at::empty({low.size(1), x.size(1)}, low.options());
  if (!grad.is_meta()) multiply(low.t(), x, std::nullopt, factor, grad);
  return grad;
}

/// base += factor low weight; base lies dense.
Tensor& up_in_place(const Tensor& low, const Tensor& weight, double factor, Tensor& base) {
  if (base.is_cuda()) return by_parts::up_in_place(low, weight, factor, base);
  if (stands_for_cuda(base)) {
    allocate_parts(base, low.numel() + weight.numel(), 0);
    return base;
  }
  if (!base.is_meta()) multiply(low, weight, base, factor, base);
  return base;
}

/// Saves x as it came, which other layers share, and x A^T.
struct LowRankFunction : torch::autograd::Function<LowRankFunction> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const Tensor& y, const Tensor& a,
                        const Tensor& b, double scale, bool fused) {
    const Products products{fused};
    const Tensor low = products.down(x, a, 1);
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({x, low, a, b});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["fused"] = fused;
    return products.up(low, b.t(), y, scale, y.scalar_type());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    if (!grads[0].defined()) return torch::autograd::variable_list(6);
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &a = saved[2], &b = saved[3];
    // A second derivative is of plain operators, and goes through x A^T too.
    const bool twice = is_differentiated();
    const Products products{!twice && ctx->saved_data["fused"].toBool()};
    const Tensor low = twice ? products.down(x, a, 1) : saved[1];
    const auto wants = [&](std::size_t input) { return ctx->needs_input_grad(input); };
    const PairGradients found = pair_gradients(products, grads[0], x, low, a, b, ctx->saved_data["scale"].toDouble(),
                                               wants(2), wants(3), wants(0));
    Tensor grad_x;
    if (wants(0)) grad_x = products.up(found.low, a, {}, 1, x.scalar_type());
    return {grad_x, grads[0], found.a, found.b, Tensor(), Tensor()};
  }
};

}  // namespace

bool takes_low_rank(const Tensor& x, const Tensor& a, const Tensor& b) {
  const at::ScalarType adapter = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return takes(x, Family::low_rank) && a.scalar_type() == adapter && b.scalar_type() == adapter &&
         a.device() == x.device() && b.device() == x.device();
}

Tensor Products::down(const Tensor& x, const Tensor& weight, double factor) const {
  static const auto op = operator_of<Tensor(const Tensor&, const Tensor&, double)>("trainer::low_rank_down");
  if (fused) return op.call(x, weight, factor);
  const Tensor low = at::mm(x.to(weight.scalar_type()), weight.t());
  return factor == 1 ? low : low * factor;
}

Tensor Products::up(const Tensor& low, const Tensor& weight, const Tensor& base, double factor,
                    at::ScalarType dtype) const {
  static const auto op =
      operator_of<Tensor(const Tensor&, const Tensor&, const Maybe&, double, at::ScalarType)>("trainer::low_rank_up");
  if (fused) return op.call(low, weight, base.defined() ? Maybe(base) : std::nullopt, factor, dtype);
  if (!base.defined()) return at::mm(low, weight).to(dtype);
  return at::addmm(base.to(weight.scalar_type()), low, weight, /*beta=*/1, factor).to(dtype);
}

Tensor Products::outer(const Tensor& low, const Tensor& x, double factor) const {
  static const auto op = operator_of<Tensor(const Tensor&, const Tensor&, double)>("trainer::low_rank_outer");
  if (fused) return op.call(low, x, factor);
  const Tensor grad = at::mm(low.t(), x.to(low.scalar_type()));
  return factor == 1 ? grad : grad * factor;
}

Tensor up_onto(Tensor base, const Tensor& low, const Tensor& weight, double factor) {
  static const auto in_place =
      operator_of<Tensor&(const Tensor&, const Tensor&, double, Tensor&)>("trainer::low_rank_up_");
  TORCH_CHECK(base.dim() == 2 && low.dim() == 2 && base.size(0) == low.size(0) && base.size(1) == weight.size(1) &&
                  low.size(1) == weight.size(0),
              "low rank: ", low.sizes(), " and ", weight.sizes(), " do not make ", base.sizes());
  const bool ours = base.use_count() == 1 && base.storage().use_count() == 1 && base.is_contiguous();
  if (!ours) return Products{true}.up(low, weight, base, factor, base.scalar_type());
  in_place.call(low, weight, factor, base);
  return base;
}

PairGradients pair_gradients(const Products& products, const Tensor& grad, const Tensor& x, const Tensor& low,
                             const Tensor& a, const Tensor& b, double scale, bool want_a, bool want_b, bool more) {
  // Of plain operators, one cast serves both products.
  const Tensor wide = products.fused ? grad : grad.to(a.scalar_type());
  PairGradients found;
  if (want_b) found.b = products.outer(low, wide, scale).t().contiguous();
  if (want_a || more) found.low = products.down(wide, b.t(), scale);
  if (want_a) found.a = products.outer(found.low, x, 1);
  return found;
}

void install_low_rank(torch::Library& library) {
  library.def("low_rank_down(Tensor x, Tensor weight, float factor) -> Tensor");
  library.def("low_rank_up(Tensor low, Tensor weight, Tensor? base, float factor, ScalarType dtype) -> Tensor");
  library.def("low_rank_up_(Tensor low, Tensor weight, float factor, Tensor(a!) base) -> Tensor(a!)");
  library.def("low_rank_outer(Tensor low, Tensor x, float factor) -> Tensor");
  for (const c10::DispatchKey key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA, c10::DispatchKey::Meta}) {
    library.impl("low_rank_down", torch::dispatch(key, &down));
    library.impl("low_rank_up", torch::dispatch(key, &up));
    library.impl("low_rank_up_", torch::dispatch(key, &up_in_place));
    library.impl("low_rank_outer", torch::dispatch(key, &outer));
  }
}

}  // namespace fused

at::Tensor low_rank_sum(const at::Tensor& x, const at::Tensor& y, const at::Tensor& a, const at::Tensor& b,
                        double scale, bool fused) {
  TORCH_CHECK(x.dim() == 2 && y.dim() == 2 && a.size(1) == x.size(1) && b.size(0) == y.size(1) &&
                  a.size(0) == b.size(1) && x.size(0) == y.size(0),
              "low_rank_sum: x ", x.sizes(), ", y ", y.sizes(), ", A ", a.sizes(), " and B ", b.sizes(),
              " do not belong together");
  return fused::LowRankFunction::apply(x, y, a, b, scale,
                                       fused && fused::takes_low_rank(x, a, b) && y.scalar_type() == x.scalar_type());
}

}  // namespace trainer
