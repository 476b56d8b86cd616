/// @file See toy.hpp.
#include "toy.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>

#include <cmath>

namespace trainer::test {
namespace {

class ToyLora final : public LinearAdapter {
 public:
  ToyLora(const std::string& layer, at::Tensor a, at::Tensor b)
      : a_(layer + ".lora_A.weight", std::move(a)), b_(layer + ".lora_B.weight", std::move(b)) {}
  [[nodiscard]] at::Tensor apply(const at::Tensor& x, const at::Tensor& y) const override {
    const at::Tensor low = at::mm(x.to(at::kFloat), a_.get().t());
    return at::addmm(y.to(at::kFloat), low, b_.get().t()).to(y.scalar_type());
  }
  [[nodiscard]] std::vector<Parameter*> parameters() override { return {&a_, &b_}; }

 private:
  Parameter a_, b_;
};

}  // namespace

at::Tensor data(uint64_t seed, at::IntArrayRef shape, at::ScalarType dtype) {
  return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed), at::kFloat).to(dtype);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const auto bytes = [](const at::Tensor& t) { return t.detach().reshape(-1).contiguous().view(at::kByte); };
  return at::equal(bytes(a), bytes(b));
}
bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!same_bits(a[i], b[i])) return false;
  return true;
}

Linear make_linear(const std::string& name, int64_t in, int64_t out, at::ScalarType dtype, uint64_t seed,
                   int64_t rank) {
  auto state = std::make_shared<LinearState>();
  state->name = name;
  state->in = in;
  state->out = out;
  const double scale = 1 / std::sqrt(static_cast<double>(in));
  state->frozen = std::make_shared<DenseWeight>((data(seed, {out, in}) * scale).to(dtype));
  if (rank > 0)
    state->adapter = std::make_unique<ToyLora>(name, (data(seed + 1, {rank, in}) * scale).requires_grad_(),
                                               (data(seed + 2, {out, rank}) * 0.1).requires_grad_());
  return Linear(std::move(state));
}

ParameterPtr make_trained(const std::string& name, at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype) {
  return std::make_shared<Parameter>(name, (data(seed, shape) * 0.2).to(dtype).requires_grad_());
}

Flow run_chain(const std::vector<Block*>& blocks, Flow flow, const BlockRun& how, RecomputePolicy* policy) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    BlockRun run = how;
    run.site = {blocks[i], static_cast<int64_t>(i), static_cast<int64_t>(blocks.size()), 0};
    if (policy != nullptr) run.options = policy->choose(run.site);
    flow.carried = run_block(*blocks[i], flow, run);
  }
  return flow;
}

Toy::Toy(const ToyOptions& options) : options_(options) {
  const int64_t width = options.width;
  input_ = data(8, {options.rows, width}, options.dtype).requires_grad_(options.input_grad);
  time_ = make_linear("time", width, width, options.dtype, 100, 2);
  modulation_ = make_linear("modulation", width, 3 * width, options.dtype, 200, 2);
  if (options.outer == Outer::add_only) table_ = make_trained("table", {1, 4 * width}, 300, options.dtype);
  read_modulation = [](const Flow& flow, int64_t) { return flow.shared[0]; };
  for (int64_t i = 0; i < options.blocks; ++i) {
    const std::string name = "block." + std::to_string(i);
    blocks_.push_back(std::make_unique<LambdaBlock>(name, [this, i](const Flow& flow) { return run(flow, i); }));
    const auto seed = static_cast<uint64_t>(1000 + 10 * i);
    up_.push_back(blocks_.back()->add(make_linear(name + ".up", width, width, options.dtype, seed, 2)));
    down_.push_back(blocks_.back()->add(make_linear(name + ".down", width, width, options.dtype, seed + 5, 2)));
    LinearState& state = down_.back().state();
    state.frozen = std::make_shared<TickingWeight>(state.frozen->dense(options.dtype), [this] { tick(); });
  }
}

at::Tensor Toy::modulation() {
  const at::Tensor time = data(7, {1, options_.width}, options_.dtype);
  if (options_.outer == Outer::linear) return modulation_(at::silu(time_(time)));
  // Neither an addition nor a slice keeps a tensor for its backward.
  return (table_->get() + 0.5).slice(1, 0, 3 * options_.width);
}

std::vector<at::Tensor> Toy::run(const Flow& flow, int64_t index) {
  const auto i = static_cast<std::size_t>(index);
  const at::Tensor& x = flow.carried[0];
  tick();
  const std::vector<at::Tensor> mod = read_modulation(flow, index).chunk(3, -1);
  tick();
  const at::Tensor h = at::layer_norm(x, {options_.width}) * (1 + mod[0]) + mod[1];
  tick();
  const at::Tensor y = at::silu(up_[i](h));
  tick();
  return {x + mod[2] * down_[i](y)};
}

at::Tensor Toy::loss(const BlockRun& how) {
  Flow flow;
  flow.carried = {input_};
  const at::Tensor mod = modulation();
  if (after_prologue) after_prologue(mod);
  if (share_modulation) flow.shared = {mod};
  flow = run_chain(blocks(), std::move(flow), how, policy);
  // The modulation is read outside the blocks too, as the final norm of a diffusion transformer does.
  return (flow.carried[0].to(at::kFloat) * (1 + mod.slice(1, 0, options_.width).to(at::kFloat))).pow(2).mean();
}

void Toy::clear_grads() {
  for (Parameter* parameter : trained()) parameter->value().mutable_grad() = at::Tensor();
  input_.mutable_grad() = at::Tensor();
}

Outcome Toy::step(const BlockRun& how, int backwards) {
  clear_grads();
  Outcome outcome;
  const at::Tensor graph = loss(how);
  for (int left = backwards - 1; left >= 0; --left) graph.backward({}, /*retain_graph=*/left > 0);
  outcome.loss = graph.detach().clone();
  const auto take = [&](const at::Tensor& grad) {
    outcome.grads.push_back(grad.defined() ? grad.clone() : at::Tensor());
  };
  for (Parameter* parameter : trained()) take(parameter->value().grad());
  if (options_.input_grad) take(input_.grad());
  clear_grads();
  return outcome;
}

std::vector<Parameter*> Toy::trained() {
  std::vector<Parameter*> list;
  if (options_.outer == Outer::add_only) {
    list.push_back(table_.get());
  } else {
    for (const Linear* linear : {&time_, &modulation_})
      for (Parameter* parameter : linear->trainable()) list.push_back(parameter);
  }
  for (const auto& block : blocks_)
    for (Parameter* parameter : block->trainable()) list.push_back(parameter);
  return list;
}

std::string Toy::name_of(const at::Tensor& tensor) {
  for (Parameter* parameter : trained())
    if (parameter->value().is_same(tensor)) return parameter->name();
  return "";
}

std::vector<Block*> Toy::blocks() {
  std::vector<Block*> list;
  for (const auto& block : blocks_) list.push_back(block.get());
  return list;
}

BlockRun recomputed(RecomputeState* sites) {
  BlockRun run;
  run.options.recompute = true;
  run.state = sites;
  return run;
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace trainer::test
