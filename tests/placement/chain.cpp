#include "chain.hpp"

#include <ATen/TensorOperators.h>
#include <sim/sim.hpp>

#include <base/rng.hpp>
#include <cmath>
#include <execution/keyed_random.hpp>
#include <support/components.hpp>

namespace trainer::placement {
namespace {

at::Tensor numbers(uint64_t key, at::IntArrayRef shape) {
  return execution::keyed_normal(KeyedRng(3, RngStream::synthetic, 0, key), shape);
}

ParameterPtr trained_at(const std::string& name, uint64_t key, at::IntArrayRef shape, at::Device device) {
  const at::Tensor value = (numbers(key, shape) * 0.1 + 0.5).to(device);
  return std::make_shared<Parameter>(name, value.requires_grad_(true));
}

class ChainBlock final : public Block {
 public:
  ChainBlock(std::size_t index, int64_t width, at::Device device) : Block("block." + std::to_string(index), "chain") {
    auto state = std::make_shared<LinearState>();
    state->name = info().name + ".linear";
    state->in = state->out = width;
    const at::Tensor weight = numbers(100 + index, {width, width}) / std::sqrt(static_cast<double>(width));
    state->frozen = std::make_shared<DenseWeight>(weight.to(device));
    linear_ = own(Linear(state));
    gain_ = own(trained_at(info().name + ".gain", 1000 + index, {width}, device));
  }
  std::vector<at::Tensor> forward(const Flow& flow) override {
    const at::Tensor& x = flow.carried[0];
    return {x + gain_->get() * linear_(x) * flow.shared[0] * 0.1};
  }

 private:
  Linear linear_;
  ParameterPtr gain_;
};

}  // namespace

ChainModel::ChainModel(const ChainSizes& sizes, const PlacementPlan& plan)
    : embed_(trained_at("embed", 1, {sizes.width}, plan.prologue)),
      shared_(trained_at("shared", 2, {sizes.width}, plan.prologue)) {
  for (std::size_t i = 0; i < sizes.blocks; ++i) {
    blocks_.push_back(std::make_unique<ChainBlock>(i, sizes.width, plan.blocks[i]));
    borrowed_.push_back(blocks_.back().get());
  }
}

Flow ChainModel::prologue(const NamedTensors& inputs) {
  return {{inputs.find("x")->second * embed_->get()}, {shared_->get() * 2}, {}};
}

at::Tensor ChainModel::epilogue(const Flow& flow) { return flow.carried[0] * flow.shared[0]; }

std::vector<Parameter*> ChainModel::trained() {
  std::vector<Parameter*> list{embed_.get(), shared_.get()};
  for (Block* block : borrowed_)
    for (Parameter* parameter : block->trainable()) list.push_back(parameter);
  return list;
}

at::Tensor SquareObjective::loss(const Example& example, const Prediction& predict) const {
  return (predict() - example.targets.find("y")->second).square().mean();
}

std::vector<at::Tensor> run_step(const ChainSizes& sizes, const PlacementPlan& plan, int64_t micro_batches,
                                 bool recompute, double* seconds) {
  ChainModel model(sizes, plan);
  const SquareObjective objective;
  std::vector<execution::MemoryStack::Named> strategies;
  if (recompute) strategies.push_back({"recompute", std::make_unique<testing::RecomputeAll>()});
  const execution::MemoryStack memory(std::move(strategies));
  execution::StageExecutor executor(model, objective, memory, plan, "chain");
  RecomputeState verified;
  const execution::StageInputs inputs{[&](int64_t micro) {
                                        Example example;
                                        const auto key = static_cast<uint64_t>(10 + micro);
                                        example.inputs["x"] = numbers(key, {sizes.tokens, sizes.width});
                                        example.targets["y"] = numbers(50 + key, {sizes.tokens, sizes.width});
                                        return example;
                                      },
                                      {},
                                      {}};
  executor.run(micro_batches, inputs, verified);  // the first run of a recomputed block is verified: other work
  for (Parameter* parameter : model.trained()) parameter->value().mutable_grad().reset();
  sim::reset_clocks();
  std::vector<at::Tensor> result = executor.run(micro_batches, inputs, verified);
  if (seconds != nullptr) *seconds = sim::makespan();
  for (at::Tensor& loss : result) loss = loss.detach().cpu();
  for (Parameter* parameter : model.trained()) result.push_back(parameter->value().grad().cpu());
  return result;
}

PlacementPlan plan_of(const ChainSizes& sizes, const std::vector<std::size_t>& starts,
                      std::vector<ScheduleStep> schedule) {
  PlacementPlan plan;
  plan.prologue = sim::device(0);
  std::size_t stage = 0;
  for (std::size_t i = 0; i < sizes.blocks; ++i) {
    if (stage + 1 < starts.size() && starts[stage + 1] == i) ++stage;
    plan.blocks.push_back(sim::device(static_cast<int>(stage)));
  }
  plan.epilogue = sim::device(static_cast<int>(starts.size()) - 1);
  plan.schedule = std::move(schedule);
  return plan;
}

}  // namespace trainer::placement
