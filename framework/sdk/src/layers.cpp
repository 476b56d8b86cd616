/// @file Parameters, linear layers and the frozen linear function.
#include <ATen/TensorOperators.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>
#include <trainer/sdk/low_rank.hpp>
#include <trainer/sdk/model.hpp>
#include <trainer/sdk/ops/fused.hpp>

#include <utility>

#include "frozen.hpp"
#include "op_region.hpp"

namespace trainer {

at::Tensor Parameter::get(at::ScalarType dtype) const {
  const at::Tensor& tensor = get();
  return tensor.scalar_type() == dtype ? tensor : tensor.to(dtype);
}

ParameterSubstitution::ParameterSubstitution(const std::vector<Parameter*>& parameters,
                                             const std::vector<at::Tensor>& substitutes)
    : parameters_(parameters) {
  TORCH_CHECK(parameters.size() == substitutes.size(), "one substitute a parameter");
  before_.reserve(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i)
    before_.push_back(std::exchange(parameters[i]->substitute_, substitutes[i]));
}
ParameterSubstitution::~ParameterSubstitution() {
  for (std::size_t i = parameters_.size(); i-- > 0;) parameters_[i]->substitute_ = before_[i];
}

at::Tensor DenseWeight::matmul(const at::Tensor& x) const { return at::mm(x, weight_.t()); }
at::Tensor DenseWeight::grad_input(const at::Tensor& g) const { return at::mm(g, weight_); }
at::Tensor DenseWeight::dense(at::ScalarType dtype) const { return weight_.to(dtype); }
int64_t DenseWeight::bytes() const { return static_cast<int64_t>(weight_.nbytes()); }
void DenseWeight::to(at::Device device) { weight_ = weight_.to(device); }

namespace {

struct WeightHandle : torch::CustomClassHolder {
  explicit WeightHandle(std::shared_ptr<FrozenWeight> frozen) : weight(std::move(frozen)) {}
  std::shared_ptr<FrozenWeight> weight;
};

}  // namespace

void keep_weight(torch::autograd::AutogradContext& context, const std::shared_ptr<FrozenWeight>& weight) {
  context.saved_data["weight"] = c10::IValue::make_capsule(c10::make_intrusive<WeightHandle>(weight));
}
std::shared_ptr<FrozenWeight> kept_weight(torch::autograd::AutogradContext& context) {
  return c10::static_intrusive_pointer_cast<WeightHandle>(context.saved_data["weight"].toCapsule())->weight;
}

at::Tensor heavy_matmul(const FrozenWeight& weight, const at::Tensor& x) {
  if (recompute::active_region() == nullptr && recompute::active_trace() == nullptr) return weight.matmul(x);
  return recompute::heavy_call("frozen_linear", "(" + recompute::text_of(x) + ")",
                               2.0 * static_cast<double>(x.size(-1)),
                               [&] { return recompute::OpRegion::Outputs{weight.matmul(x)}; })
      .front()
      .toTensor();
}

namespace {

struct FrozenLinear : torch::autograd::Function<FrozenLinear> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const std::shared_ptr<FrozenWeight>& weight) {
    keep_weight(*ctx, weight);
    return heavy_matmul(*weight, x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    return {grads[0].defined() ? frozen_linear_input(grads[0], kept_weight(*ctx)) : at::Tensor(), at::Tensor()};
  }
};

/// g W. What a format computes in 8 bits has no derivative of its own, or none that means anything.
struct FrozenLinearInput : torch::autograd::Function<FrozenLinearInput> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& g,
                            const std::shared_ptr<FrozenWeight>& weight) {
    keep_weight(*ctx, weight);
    return weight->grad_input(g);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    return {grads[0].defined() ? frozen_linear(grads[0], kept_weight(*ctx)) : at::Tensor(), at::Tensor()};
  }
};

at::Tensor without_adapter(const LinearState& state, const at::Tensor& x) {
  at::Tensor y;
  if (state.frozen) {
    y = frozen_linear(x, state.frozen);
  } else {
    TORCH_CHECK(state.weight, "the weight of \"", state.name, "\" was not loaded");
    y = at::mm(x, state.weight->get(x.scalar_type()).t());
  }
  return state.bias ? y + state.bias->get(x.scalar_type()) : y;
}

at::Tensor with_adapter(const LinearState& state, const at::Tensor& x) {
  if (!state.adapter || !state.adapter_enabled) return without_adapter(state, x);
  const auto* narrow = dynamic_cast<const LowRankAdapter*>(state.adapter.get());
  if (narrow == nullptr || !state.frozen || state.bias) return state.adapter->apply(x, without_adapter(state, x));
  const LowRankAdapter::Pair pair = narrow->pair();
  return low_rank_linear(x, state.frozen, pair.a, pair.b, pair.scale);
}

void append_trained(std::vector<Parameter*>& list, const ParameterPtr& parameter) {
  if (parameter && parameter->trainable()) list.push_back(parameter.get());
}

}  // namespace

at::Tensor frozen_linear(const at::Tensor& x, const std::shared_ptr<FrozenWeight>& weight) {
  if (!x.requires_grad() || !at::GradMode::is_enabled()) return heavy_matmul(*weight, x);
  return FrozenLinear::apply(x, weight);
}

at::Tensor frozen_linear_input(const at::Tensor& g, const std::shared_ptr<FrozenWeight>& weight) {
  if (!g.requires_grad() || !at::GradMode::is_enabled()) return weight->grad_input(g);
  return FrozenLinearInput::apply(g, weight);
}

at::Tensor Linear::operator()(const at::Tensor& x) const {
  const LinearState& state = *state_;
  TORCH_CHECK(x.size(-1) == state.in, "layer \"", state.name, "\" takes ", state.in, " features, got ", x.size(-1));
  const at::Tensor rows = x.dim() == 2 ? x : x.reshape({-1, state.in});
  at::Tensor y = with_adapter(state, rows);
  if (x.dim() == 2) return y;
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = state.out;
  return y.view(shape);
}

std::vector<Parameter*> Linear::trainable() const {
  std::vector<Parameter*> list;
  append_trained(list, state_->weight);
  append_trained(list, state_->bias);
  if (state_->adapter)
    for (Parameter* parameter : state_->adapter->parameters()) list.push_back(parameter);
  return list;
}

std::vector<Parameter*> Block::trainable() const {
  std::vector<Parameter*> list;
  for (const Linear& linear : info_.linears)
    for (Parameter* parameter : linear.trainable()) list.push_back(parameter);
  for (const ParameterPtr& parameter : info_.parameters) append_trained(list, parameter);
  return list;
}

Linear Block::own(Linear linear) {
  info_.linears.push_back(linear);
  return linear;
}
ParameterPtr Block::own(ParameterPtr parameter) {
  info_.parameters.push_back(parameter);
  return parameter;
}

}  // namespace trainer
