/// @file See chain.hpp.
#include "chain.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>

namespace trainer::test {

Chain::Chain(const ChainOptions& options) : options_(options) {
  const int64_t width = options.width;
  modulation_ = std::make_shared<Parameter>(
      "modulation",
      (data(3, {1, 3 * width}) * 0.3).to(options.device, options.dtype).requires_grad_(options.trained_modulation));
  for (int64_t i = 0; i < options.blocks; ++i) {
    const std::string name = "block." + std::to_string(i);
    const auto index = static_cast<std::size_t>(i);
    const auto seed = static_cast<uint64_t>(100 + 40 * i);
    blocks_.push_back(
        std::make_unique<LambdaBlock>(name, [this, index](const Flow& flow) { return run(flow, index); }));
    LambdaBlock& block = *blocks_.back();
    qkv_.push_back(block.add(make_linear(name + ".qkv", width, 3 * width, options.dtype, seed, 2)));
    projection_.push_back(block.add(make_linear(name + ".projection", width, width, options.dtype, seed + 10)));
    up_.push_back(block.add(make_linear(name + ".up", width, 2 * width, options.dtype, seed + 20)));
    down_.push_back(block.add(make_linear(name + ".down", 2 * width, width, options.dtype, seed + 30, 2)));
    for (const Linear& linear : block.info().linears) linear.state().frozen->to(options.device);
    for (Parameter* parameter : block.trainable())
      parameter->value() = parameter->value().detach().to(options.device).requires_grad_();
  }
}

std::vector<at::Tensor> Chain::run(const Flow& flow, std::size_t i) {
  const at::Tensor& x = flow.carried[0];
  const std::vector<at::Tensor> mod = flow.shared[0].chunk(3, -1);
  const at::Tensor h = at::layer_norm(x, {options_.width}) * (1 + mod[0]) + mod[1];
  std::vector<at::Tensor> heads;
  for (const at::Tensor& part : qkv_[i](h).chunk(3, -1))
    heads.push_back(part.reshape({1, options_.rows, 2, options_.width / 2}).transpose(1, 2));
  const at::Tensor attention = at::scaled_dot_product_attention(heads[0], heads[1], heads[2]);
  const at::Tensor y = x + projection_[i](attention.transpose(1, 2).reshape({options_.rows, options_.width}));
  const at::Tensor wide = at::silu(up_[i](at::layer_norm(y, {options_.width})));
  enter();
  return {y + mod[2] * down_[i](wide)};
}

at::Tensor Chain::loss(const BlockRun& how, RecomputePolicy* policy) {
  std::vector<Block*> list;
  for (const auto& block : blocks_) list.push_back(block.get());
  Flow flow{{data(8, {options_.rows, options_.width}, options_.dtype).to(options_.device)}, {modulation_->value()}, {}};
  flow = run_chain(list, std::move(flow), how, policy);
  return flow.carried[0].to(at::kFloat).pow(2).mean();
}

std::vector<at::Tensor> Chain::step(const BlockRun& how, RecomputePolicy* policy) {
  take_grads();
  const at::Tensor graph = loss(how, policy);
  graph.backward();
  std::vector<at::Tensor> all = take_grads();
  all.push_back(graph.detach());
  return all;
}

std::vector<at::Tensor> Chain::take_grads() {
  std::vector<at::Tensor> grads;
  for (Parameter* parameter : trained()) {
    at::Tensor& grad = parameter->value().mutable_grad();
    grads.push_back(grad);
    grad = at::Tensor();
  }
  return grads;
}

std::vector<Parameter*> Chain::trained() {
  std::vector<Parameter*> list;
  if (modulation_->trainable()) list.push_back(modulation_.get());
  for (const auto& block : blocks_)
    for (Parameter* parameter : block->trainable()) list.push_back(parameter);
  return list;
}

std::vector<at::Tensor> Single::step(const BlockRun& how, const std::vector<std::size_t>& used) {
  const std::vector<at::Tensor> outputs = run_chain({&block}, {carried, {}, {}}, how).carried;
  at::Tensor loss;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!used.empty() && std::find(used.begin(), used.end(), i) == used.end()) continue;
    const at::Tensor part = (outputs[i] * data(70 + i, outputs[i].sizes())).sum();
    loss = loss.defined() ? loss + part : part;
  }
  loss.backward();
  std::vector<at::Tensor> grads;
  for (Parameter* parameter : block.trainable()) {
    grads.push_back(parameter->value().grad());
    parameter->value().mutable_grad() = at::Tensor();
  }
  return grads;
}

BlockRun keeping(SavePolicy& save, RecomputeState* sites) {
  BlockRun run = recomputed(sites);
  run.options.save = &save;
  return run;
}

BlockRun eliding(RecomputeState& sites) {
  BlockRun run = recomputed(&sites);
  run.options.elide = true;
  return run;
}

}  // namespace trainer::test
