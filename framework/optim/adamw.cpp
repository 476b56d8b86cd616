#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <optim/adamw.hpp>
#include <optim/by_device.hpp>
#include <trainer/sdk/error.hpp>

#include <ATen/core/grad_mode.h>

#include <utility>

namespace trainer::optim {
namespace {

std::vector<at::Tensor> gradients(const std::vector<Parameter*>& parameters) {
  std::vector<at::Tensor> list;
  for (Parameter* parameter : parameters)
    if (parameter->value().grad().defined()) list.push_back(parameter->value().grad());
  return list;
}

}  // namespace

AdamW::AdamW(std::vector<Parameter*> parameters, const AdamWOptions& options)
    : parameters_(std::move(parameters)), options_(options) {
  for (Parameter* parameter : parameters_) {
    const at::Tensor& value = parameter->value();
    exp_avg_.push_back(at::zeros_like(value, value.options().requires_grad(false)));
    exp_avg_sq_.push_back(at::zeros_like(value, value.options().requires_grad(false)));
    steps_.push_back(at::zeros({}, value.options().requires_grad(false).dtype(at::kFloat)));
  }
}

void AdamW::step(double lr, const at::Tensor& veto) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> values, grads;
  for (Parameter* parameter : parameters_) {
    at::Tensor& value = parameter->value();
    values.push_back(value);
    grads.push_back(value.grad().defined() ? value.grad() : at::zeros_like(value));
  }
  for (const auto& [device, group] : by_device(values)) {
    const auto of = [&group = group](const std::vector<at::Tensor>& all) { return chosen(all, group); };
    std::vector<at::Tensor> on = of(values), first = of(exp_avg_), second = of(exp_avg_sq_), steps = of(steps_);
    const at::Tensor vetoed = veto.defined() ? veto.to(device) : at::Tensor();
    if (vetoed.defined())
      at::_foreach_add_(steps, 1 - vetoed);
    else
      at::_foreach_add_(steps, 1);
    at::_fused_adamw_(on, of(grads), first, second, {}, steps, lr, options_.beta1, options_.beta2,
                      options_.weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/{},
                      /*found_inf=*/vetoed.defined() ? std::optional(vetoed) : std::nullopt);
  }
}

void AdamW::step_one(std::size_t index, double lr, const at::Tensor& veto) {
  const at::NoGradGuard no_grad;
  at::Tensor& value = parameters_[index]->value();
  const at::Tensor grad = value.grad().defined() ? value.grad() : at::zeros_like(value);
  steps_[index].add_(1 - veto);
  at::_fused_adamw_({value}, {grad}, {exp_avg_[index]}, {exp_avg_sq_[index]}, {}, {steps_[index]}, lr, options_.beta1,
                    options_.beta2, options_.weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false,
                    /*grad_scale=*/{}, /*found_inf=*/veto);
}

void AdamW::zero_grad() {
  for (Parameter* parameter : parameters_) parameter->value().mutable_grad().reset();
}

NamedTensors AdamW::state() const {
  NamedTensors state;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::string& name = parameters_[i]->name();
    state[name + ".exp_avg"] = exp_avg_[i];
    state[name + ".exp_avg_sq"] = exp_avg_sq_[i];
    state[name + ".step"] = steps_[i];
  }
  return state;
}

void AdamW::load_state(const NamedTensors& state) {
  const NamedTensors mine = this->state();
  for (const auto& [name, tensor] : mine) {
    const auto it = state.find(name);
    if (it == state.end()) throw Error(ExitCode::bad_input, "the optimiser state lacks \"" + name + "\"");
    if (it->second.sizes() != tensor.sizes() || it->second.scalar_type() != tensor.scalar_type())
      throw Error(ExitCode::bad_input, "the optimiser state \"" + name + "\" has another shape or dtype");
  }
  for (const auto& [name, tensor] : state)
    if (!mine.contains(name)) throw Error(ExitCode::bad_input, "the optimiser state has an unknown \"" + name + "\"");
  for (const auto& [name, tensor] : mine) tensor.copy_(state.at(name));
}

at::Tensor gradient_norm(const std::vector<Parameter*>& parameters) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> grads = gradients(parameters);
  if (grads.empty()) return at::zeros({}, at::kFloat);
  std::vector<at::Tensor> norms(grads.size());
  for (const auto& [device, group] : by_device(grads)) {
    const std::vector<at::Tensor> found = at::_foreach_norm(chosen(grads, group), 2);
    for (std::size_t i = 0; i < group.size(); ++i) norms[group[i]] = found[i].to(grads.front().device());
  }
  return at::linalg_vector_norm(at::stack(norms), 2);
}

void clip_gradients(const std::vector<Parameter*>& parameters, const at::Tensor& norm, double max_norm) {
  const at::NoGradGuard no_grad;
  const at::Tensor factor = (max_norm / (norm + 1e-6)).clamp_max(1.0);
  const std::vector<at::Tensor> grads = gradients(parameters);
  for (const auto& [device, group] : by_device(grads)) at::_foreach_mul_(chosen(grads, group), factor.to(device));
}

}  // namespace trainer::optim
