/// @file See resident.hpp.
#include "resident.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include <optional>

namespace trainer::recompute {

/// Whether the weights are there for the backward of one run; shared by the two nodes.
struct BackwardStay::State {
  explicit State(const BlockRun& block_run) : run(block_run) {}
  BlockRun run;
  std::optional<Resident> stay;
};

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Handle : torch::CustomClassHolder {
  Handle(std::shared_ptr<BackwardStay::State> shared, bool at_begin) : state(std::move(shared)), begins(at_begin) {}
  std::shared_ptr<BackwardStay::State> state;
  bool begins;  ///< its backward is the first of the block
};

/// Passes tensors and gradients through unchanged.
struct Border : torch::autograd::Function<Border> {
  static variable_list forward(AutogradContext* ctx, at::TensorList tensors, const c10::intrusive_ptr<Handle>& handle) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["handle"] = c10::IValue::make_capsule(handle);
    return tensors.vec();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto handle = c10::static_intrusive_pointer_cast<Handle>(ctx->saved_data["handle"].toCapsule());
    BackwardStay::State& state = *handle->state;
    state.stay.reset();
    if (handle->begins) state.stay.emplace(state.run, Pass::backward);
    grads.emplace_back();  // of the handle
    return grads;
  }
};

std::vector<at::Tensor> through(std::vector<at::Tensor> tensors, const std::shared_ptr<BackwardStay::State>& state,
                                bool begins) {
  std::vector<at::Tensor> differentiable;
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined() && tensor.requires_grad()) differentiable.push_back(tensor);
  if (differentiable.empty()) return tensors;
  const variable_list passed =
      Border::apply(at::TensorList(differentiable), c10::make_intrusive<Handle>(state, begins));
  auto next = passed.begin();
  for (at::Tensor& tensor : tensors)
    if (tensor.defined() && tensor.requires_grad()) tensor = *next++;
  return tensors;
}

}  // namespace

BackwardStay::BackwardStay(const BlockRun& run) : state_(std::make_shared<State>(run)) {}

std::vector<at::Tensor> BackwardStay::inputs(std::vector<at::Tensor> tensors) const {
  return through(std::move(tensors), state_, /*begins=*/false);
}

std::vector<at::Tensor> BackwardStay::outputs(std::vector<at::Tensor> tensors) const {
  return through(std::move(tensors), state_, /*begins=*/true);
}

}  // namespace trainer::recompute
