#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <optim/fused_backward.hpp>
#include <trainer/sdk/error.hpp>

#include <cmath>

namespace trainer::optim {

/// Runs when a parameter's gradient is complete: once in a backward, whatever the number of its uses.
class FusedBackward::Hook final : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(FusedBackward& owner, std::size_t index) : owner_(owner), index_(index) {}
  void operator()(const at::Tensor&) override { owner_.arrived(index_); }

 private:
  FusedBackward& owner_;
  std::size_t index_;
};

FusedBackward::FusedBackward(AdamW& optimizer) : optimizer_(optimizer), norms_(optimizer.parameters().size()) {
  for (std::size_t i = 0; i < norms_.size(); ++i)
    torch::autograd::impl::set_post_acc_grad_hooks(optimizer_.parameters()[i]->value(),
                                                   std::make_unique<Hook>(*this, i));
}

FusedBackward::~FusedBackward() {
  for (Parameter* parameter : optimizer_.parameters())
    torch::autograd::impl::set_post_acc_grad_hooks(parameter->value(), nullptr);
}

void FusedBackward::begin(double lr) {
  if (mixed())
    throw Error(
        ExitCode::failed,
        "a step was interrupted while optimizer.fused_backward updated parameters: some weights are from before "
        "it, some from after. Start again from the last checkpoint.");
  lr_ = lr;
  in_step_ = true;
  loss_.reset();
  order_.clear();
  norms_.assign(norms_.size(), {});
  vetos_.clear();
}

void FusedBackward::watch(const at::Tensor& loss) { loss_ = loss.detach(); }

at::Tensor& FusedBackward::veto_on(at::Device device) {
  const auto [it, fresh] = vetos_.try_emplace(device);
  if (fresh)
    it->second = loss_.defined() ? at::isfinite(loss_).logical_not().to(device, at::kFloat, /*non_blocking=*/true)
                                 : at::zeros({}, at::TensorOptions(device).dtype(at::kFloat));
  return it->second;
}

void FusedBackward::arrived(std::size_t index) {
  const at::NoGradGuard no_grad;
  Parameter& parameter = *optimizer_.parameters()[index];
  if (!in_step_ || norms_[index].defined())
    throw Error(ExitCode::failed, "\"" + parameter.name() +
                                      "\" got a second gradient after its update in this step; it is trained by two "
                                      "backward passes, which optimizer.fused_backward cannot do");
  const at::Tensor& grad = parameter.value().grad();
  norms_[index] = at::_foreach_norm({grad}, 2).front();
  order_.push_back(index);
  at::Tensor& veto = veto_on(grad.device());
  veto = at::maximum(veto, at::isfinite(norms_[index]).logical_not().to(at::kFloat));
  optimizer_.step_one(index, lr_, veto);
  parameter.value().mutable_grad().reset();
}

at::Tensor FusedBackward::finish() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> norms;
  for (std::size_t i = 0; i < norms_.size(); ++i) {
    if (norms_[i].defined())
      norms.push_back(norms_[i].to(norms.empty() ? norms_[i].device() : norms.front().device()));
    else
      optimizer_.step_one(i, lr_, veto_on(optimizer_.parameters()[i]->value().device()));
  }
  const at::Tensor norm = norms.empty() ? at::zeros({}, at::kFloat) : at::linalg_vector_norm(at::stack(norms), 2);
  in_step_ = !norm.is_meta() && !std::isfinite(norm.item<double>());  // a dry run has no values
  return norm;
}

bool FusedBackward::mixed() const {
  if (!in_step_ || order_.empty()) return false;
  const bool loss_bad = loss_.defined() && !std::isfinite(loss_.item<double>());
  return !loss_bad && std::isfinite(norms_[order_.front()].item<double>());
}

std::string FusedBackward::first_bad() const {
  for (const std::size_t index : order_)
    if (!std::isfinite(norms_[index].item<double>())) return optimizer_.parameters()[index]->name();
  return {};
}

}  // namespace trainer::optim
