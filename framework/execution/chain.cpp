#include <ATen/core/grad_mode.h>
#include <execution/chain.hpp>

#include <algorithm>

namespace trainer::execution {
namespace {

bool differentiable(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); });
}

}  // namespace

Chain::Chain(Model& model, const Flow& flow, int64_t micro_batch)
    : blocks_(model.blocks()), micro_batch_(micro_batch), parts_(blocks_.size()) {
  if (!at::GradMode::is_enabled()) return;
  bool trained = differentiable(flow.carried) || differentiable(flow.shared);
  int64_t count = 0;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (!blocks_[i]->takes_part(flow)) continue;
    trained = trained || !blocks_[i]->trainable().empty();
    if (trained) parts_[i] = {blocks_[i], count++, 0, micro_batch};
  }
  for (Site& part : parts_) part.count = count;
}

Site Chain::site(std::size_t index) const {
  return {blocks_[index], static_cast<int64_t>(index), static_cast<int64_t>(blocks_.size()), micro_batch_};
}

const Site* Chain::part(std::size_t index) const { return parts_[index].block != nullptr ? &parts_[index] : nullptr; }

}  // namespace trainer::execution
