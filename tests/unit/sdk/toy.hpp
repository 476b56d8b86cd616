/// @file A small modulated transformer chain for tests of the recompute engine: LoRA on the timestep embedder, on the
/// shared modulation and on the blocks, with hooks to read the modulation in forbidden ways and to fail anywhere.
#pragma once

#include <gtest/gtest.h>
#include <trainer/sdk/recompute.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trainer::test {

/// Standard normal numbers that depend on the seed alone.
at::Tensor data(uint64_t seed, at::IntArrayRef shape, at::ScalarType dtype = at::kFloat);

/// Same count, definedness, dtypes, shapes and bits.
bool same_bits(const at::Tensor& a, const at::Tensor& b);
bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

/// A block made of a function.
using Body = std::function<std::vector<at::Tensor>(const Flow&)>;
class LambdaBlock final : public Block {
 public:
  explicit LambdaBlock(std::string name, Body function = {})
      : Block(std::move(name), "toy"), body(std::move(function)) {}
  std::vector<at::Tensor> forward(const Flow& flow) override {
    ++calls;
    return body(flow);
  }
  Linear add(Linear linear) { return own(std::move(linear)); }
  ParameterPtr add(ParameterPtr parameter) { return own(std::move(parameter)); }
  Body body;
  int calls = 0;
};

/// A frozen weight that calls `tick` before it computes, forward and backward.
class TickingWeight final : public FrozenWeight {
 public:
  TickingWeight(at::Tensor weight, std::function<void()> tick) : dense_(std::move(weight)), tick_(std::move(tick)) {}
  [[nodiscard]] at::Tensor matmul(const at::Tensor& x) const override { return tick_(), dense_.matmul(x); }
  [[nodiscard]] at::Tensor grad_input(const at::Tensor& g) const override { return tick_(), dense_.grad_input(g); }
  [[nodiscard]] at::Tensor dense(at::ScalarType dtype) const override { return dense_.dense(dtype); }
  [[nodiscard]] int64_t bytes() const override { return dense_.bytes(); }
  void to(at::Device device) override { dense_.to(device); }
  [[nodiscard]] std::vector<at::Tensor*> tensors() override { return dense_.tensors(); }

 private:
  DenseWeight dense_;
  std::function<void()> tick_;
};

/// Frozen weight in `dtype`, with fp32 LoRA matrices (both non-zero) when rank > 0.
Linear make_linear(const std::string& name, int64_t in, int64_t out, at::ScalarType dtype, uint64_t seed,
                   int64_t rank = 0);
ParameterPtr make_trained(const std::string& name, at::IntArrayRef shape, uint64_t seed,
                          at::ScalarType dtype = at::kFloat);

/// Runs blocks in order, each as `how` says (and the policy, when given), with its own site.
Flow run_chain(const std::vector<Block*>& blocks, Flow flow, const BlockRun& how, RecomputePolicy* policy = nullptr);

/// What the modulation is made by: a linear layer (saves tensors) or additions and splits (save nothing).
enum class Outer { linear, add_only };

struct ToyOptions {
  at::ScalarType dtype = at::kFloat;
  int64_t blocks = 3;
  Outer outer = Outer::linear;
  int64_t width = 24;
  int64_t rows = 6;
  bool input_grad = false;  ///< the tensor that the chain begins with needs a gradient
};

/// Loss and gradients of one step, in the order of Toy::trained(); the chain's input last, where it needs a gradient.
struct Outcome {
  at::Tensor loss;
  std::vector<at::Tensor> grads;
  bool operator==(const Outcome& other) const { return same_bits(loss, other.loss) && same_bits(grads, other.grads); }
};

class Toy {
 public:
  explicit Toy(const ToyOptions& options = {});
  /// The graph of the loss.
  at::Tensor loss(const BlockRun& how);
  /// Forward, `backwards` backwards of its graph, gradients taken and cleared.
  Outcome step(const BlockRun& how, int backwards = 1);
  void clear_grads();
  std::vector<Parameter*> trained();
  /// Name of a trained leaf, for RecomputeState.
  std::string name_of(const at::Tensor& tensor);
  std::vector<Block*> blocks();
  LambdaBlock& block(std::size_t index) { return *blocks_[index]; }

  /// How block `index` gets the modulation; the default reads Flow::shared.
  std::function<at::Tensor(const Flow&, int64_t index)> read_modulation;
  /// Called with the modulation that the prologue made.
  std::function<void(const at::Tensor&)> after_prologue;
  RecomputePolicy* policy = nullptr;   ///< chooses per block
  bool share_modulation = true;        ///< whether it is in Flow::shared
  std::function<void()> tick = [] {};  ///< called before every operation of a block

 private:
  at::Tensor modulation();
  std::vector<at::Tensor> run(const Flow& flow, int64_t index);
  ToyOptions options_;
  at::Tensor input_;
  Linear time_, modulation_;
  ParameterPtr table_;
  std::vector<Linear> up_, down_;
  std::vector<std::unique_ptr<LambdaBlock>> blocks_;
};

/// Options of a run: nothing kept but inputs, verified into `sites`.
BlockRun recomputed(RecomputeState* sites = nullptr);

/// Message and code of the Error that `call` throws; "" when it throws none.
std::string error_of(const std::function<void()>& call);

}  // namespace trainer::test
