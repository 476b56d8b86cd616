#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/zeros.h>
#include <optim/by_device.hpp>
#include <optim/ema.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <utility>

namespace trainer::optim {

Ema::Ema(std::vector<Parameter*> parameters, double decay)
    : parameters_(std::move(parameters)), decay_(decay), updates_(at::zeros({}, at::kLong)) {
  for (Parameter* parameter : parameters_) shadow_.push_back(parameter->value().detach().clone());
}

void Ema::update() {
  const at::NoGradGuard no_grad;
  const double n = static_cast<double>(updates_.item<int64_t>());
  updates_.add_(1);
  const double decay = std::min(decay_, (1.0 + n) / (10.0 + n));
  std::vector<at::Tensor> values;
  for (const Parameter* parameter : parameters_) values.push_back(parameter->value().detach());
  for (const auto& [device, group] : by_device(shadow_)) {
    std::vector<at::Tensor> shadows = chosen(shadow_, group);
    at::_foreach_lerp_(shadows, chosen(values, group), 1.0 - decay);
  }
}

void Ema::swap() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < shadow_.size(); ++i) {
    const at::Tensor before = parameters_[i]->value().detach().clone();
    parameters_[i]->value().copy_(shadow_[i]);
    shadow_[i].copy_(before);
  }
}

NamedTensors Ema::state() const {
  NamedTensors state{{"ema.updates", updates_}};
  for (std::size_t i = 0; i < shadow_.size(); ++i) state[parameters_[i]->name() + ".ema"] = shadow_[i];
  return state;
}

void Ema::load_state(const NamedTensors& state) {
  const NamedTensors mine = this->state();
  for (const auto& [name, tensor] : mine) {
    const auto it = state.find(name);
    if (it == state.end() || it->second.sizes() != tensor.sizes() || it->second.scalar_type() != tensor.scalar_type())
      throw Error(ExitCode::bad_input, "the EMA state lacks \"" + name + "\" or has it in another shape or dtype");
  }
  for (const auto& [name, tensor] : state)
    if (!mine.contains(name)) throw Error(ExitCode::bad_input, "the EMA state has an unknown \"" + name + "\"");
  for (const auto& [name, tensor] : mine) tensor.copy_(state.at(name));
}

}  // namespace trainer::optim
