/// @file Small cases of PyTorch's checkpoint tests that have no other home here: randomness, repeated outputs, errors
/// between runs. The whole list: docs/pytorch-tests.md.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/autograd.h>

#include "toy.hpp"

namespace trainer::test {
namespace {

/// A block with one trained weight; loss and gradients of its outputs' sum of squares.
struct One {
  ParameterPtr weight = make_trained("weight", {6, 6}, 1);
  at::Tensor x = data(2, {4, 6}).requires_grad_();
  LambdaBlock block{"b"};
  RecomputeState state;

  explicit One(Body body) {
    block.body = std::move(body);
    block.add(weight);
  }
  std::vector<at::Tensor> step(const BlockRun& how, std::size_t blocks = 1) {
    const Flow end = run_chain(std::vector<Block*>(blocks, &block), {{x * 1}, {}, {}}, how);
    at::Tensor loss = x.sum() * 0;
    for (const at::Tensor& output : end.carried) loss = loss + output.pow(2).sum();
    std::vector<at::Tensor> found = torch::autograd::grad({loss}, {x, weight->value()});
    found.push_back(loss.detach());
    return found;
  }
  void expect_equal(std::size_t blocks = 1) {
    const auto plain = step({}, blocks);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(same_bits(step(recomputed(&state), blocks), plain)) << "step " << i;
    EXPECT_TRUE(same_bits(step(recomputed(), blocks), plain)) << "not verified";
  }
};

/// test_checkpoint_rng_cpu, tags_rand: numbers of a generator with state would be others in the recompute: refused.
TEST(CheckpointRng, DropoutOfLibTorchIsRefused) {
  One one([&](const Flow& flow) {
    return std::vector<at::Tensor>{at::dropout(at::mm(flow.carried[0], one.weight->get()), 0.5, /*train=*/true)};
  });
  EXPECT_NE(error_of([&] { one.step(recomputed(&one.state)); }).find("computed other values for output 0"),
            std::string::npos);
}

/// tags_dropout: keyed by what the block is given, the mask is the same every time.
TEST(CheckpointRng, KeyedDropoutIsEqual) {
  One one([&](const Flow& flow) {
    const at::Tensor mask = (data(99, {4, 6}) > 0).to(at::kFloat) * 2;
    return std::vector<at::Tensor>{at::mm(flow.carried[0] * mask, one.weight->get())};
  });
  one.expect_equal();
}

/// test_checkpoint_not_preserve_rng_state_and_without_reentrant: there is nothing to preserve. (A block that draws is
/// refused: DetectsNonDeterminism.RandomNumbers.)
TEST(CheckpointRng, TheGeneratorIsNotTouched) {
  const at::Generator generator = at::detail::getDefaultCPUGenerator();
  const auto state = [&] { return at::Tensor::wrap_tensor_impl(generator.unsafeGetGeneratorImpl()->get_state()); };
  One one(
      [&](const Flow& flow) { return std::vector<at::Tensor>{at::silu(at::mm(flow.carried[0], one.weight->get()))}; });
  const at::Tensor before = state();
  one.step(recomputed(&one.state));
  one.step(recomputed(&one.state));
  EXPECT_TRUE(same_bits(before, state()));
}

/// return_same_element_twice.
TEST(Outputs, TheSameTensorTwice) {
  One one([&](const Flow& flow) {
    const at::Tensor y = at::silu(at::mm(flow.carried[0], one.weight->get()));
    return std::vector<at::Tensor>{y, y};
  });
  one.expect_equal();
}
/// The same through views and through the input itself.
TEST(Outputs, ViewsOfOneTensorAndTheInputItself) {
  One one([&](const Flow& flow) {
    const at::Tensor y = at::mm(flow.carried[0], one.weight->get());
    return std::vector<at::Tensor>{y, y.t(), flow.carried[0], y.slice(0, 0, 2)};
  });
  one.expect_equal();
}

/// test_same_graph: one block twice in a chain, its graph ended by one loss.
TEST(SameGraph, OneBlockManyTimes) {
  One one(
      [&](const Flow& flow) { return std::vector<at::Tensor>{at::silu(at::mm(flow.carried[0], one.weight->get()))}; });
  one.expect_equal(5);
}

/// test_reentrant_backwards: a backward inside a block would end in its recompute's leaves; it may have its own graph.
TEST(BackwardInABlock, OfItsOwnGraphIsFine) {
  One one([&](const Flow& flow) {
    at::Tensor inner;
    {
      const at::AutoGradMode on(true);
      const at::Tensor own = data(3, {6, 6}).requires_grad_();
      inner = torch::autograd::grad({own.pow(3).sum()}, {own})[0];
    }
    return std::vector<at::Tensor>{at::mm(flow.carried[0], one.weight->get() * inner)};
  });
  one.expect_equal();
}

/// set_early_stop_no_recompution_needed. Here a recomputed block runs once whenever a gradient arrives, also where its
/// backward reads no value (x + 1); where none arrives, it does not run.
TEST(NothingNeeded, RunsOnceWhereAGradientArrivesAndElseNever) {
  One one([&](const Flow& flow) { return std::vector<at::Tensor>{flow.carried[0] + 1, flow.carried[0] + 2}; });
  const Flow end = run_chain({&one.block}, {{one.x * 1}, {}, {}}, recomputed(&one.state));
  const int calls = one.block.calls;
  const at::Tensor beside = (end.carried[0].detach() * one.x).sum();
  beside.backward();
  EXPECT_EQ(one.block.calls, calls);
  end.carried[1].sum().backward();
  EXPECT_EQ(one.block.calls, calls + 1);
}

}  // namespace
}  // namespace trainer::test
