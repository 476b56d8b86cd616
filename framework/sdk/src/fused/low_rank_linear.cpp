/// @file A frozen layer and its low-rank adapter as one node of autograd.
#include <torch/csrc/autograd/custom_function.h>
#include <trainer/sdk/ops/fused.hpp>

#include <utility>

#include "../frozen.hpp"
#include "../op_region.hpp"
#include "low_rank.hpp"
#include "twice.hpp"

namespace trainer {
namespace fused {
namespace {

using at::Tensor;

/// The adapter's part on the product `y` of the layer. One heavy call of one name, whether it may write over y or not:
/// a product that the region keeps is left as it is.
Tensor heavy_up_onto(Tensor y, const Tensor& low, const Tensor& weight, double factor) {
  if (recompute::active_region() == nullptr && recompute::active_trace() == nullptr)
    return up_onto(std::move(y), low, weight, factor);
  const std::string arguments =
      "(" + recompute::text_of(low) + ", " + recompute::text_of(weight) + ", " + recompute::text_of(y) + ")";
  return recompute::heavy_call("low_rank_up", arguments, 2.0 * static_cast<double>(low.size(-1)),
                               [&] { return recompute::OpRegion::Outputs{up_onto(std::move(y), low, weight, factor)}; })
      .front()
      .toTensor();
}

struct LowRankLinear : torch::autograd::Function<LowRankLinear> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const Tensor& a, const Tensor& b,
                        const std::shared_ptr<FrozenWeight>& weight, double scale) {
    Tensor y = heavy_matmul(*weight, x);
    const Tensor low = Products{true}.down(x, a, 1);
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({x, low, a, b});
    ctx->saved_data["scale"] = scale;
    keep_weight(*ctx, weight);
    return heavy_up_onto(std::move(y), low, b.t(), scale);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    if (!grads[0].defined()) return torch::autograd::variable_list(5);
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &a = saved[2], &b = saved[3];
    const bool want_x = ctx->needs_input_grad(0);
    // A second derivative is of plain operators, and goes through x A^T too.
    const bool twice = is_differentiated();
    const Products products{!twice};
    const Tensor low = twice ? products.down(x, a, 1) : saved[1];
    PairGradients found = pair_gradients(products, grads[0], x, low, a, b, ctx->saved_data["scale"].toDouble(),
                                         ctx->needs_input_grad(1), ctx->needs_input_grad(2), want_x);
    Tensor grad_x;
    if (want_x) {
      grad_x = frozen_linear_input(grads[0], kept_weight(*ctx));
      grad_x =
          twice ? products.up(found.low, a, grad_x, 1, x.scalar_type()) : up_onto(std::move(grad_x), found.low, a, 1);
    }
    return {grad_x, found.a, found.b, Tensor(), Tensor()};
  }
};

}  // namespace
}  // namespace fused

at::Tensor low_rank_linear(const at::Tensor& x, const std::shared_ptr<FrozenWeight>& weight, const at::Tensor& a,
                           const at::Tensor& b, double scale, bool fused) {
  TORCH_CHECK(x.dim() == 2 && a.size(1) == x.size(1) && a.size(0) == b.size(1), "low_rank_linear: x ", x.sizes(),
              ", A ", a.sizes(), " and B ", b.sizes(), " do not belong together");
  if (!fused || !fused::takes_low_rank(x, a, b)) return low_rank_sum(x, frozen_linear(x, weight), a, b, scale, fused);
  return fused::LowRankLinear::apply(x, a, b, weight, scale);
}

}  // namespace trainer
