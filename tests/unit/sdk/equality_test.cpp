/// @file Recomputed == plain, bit for bit, for every shape of block the contract allows.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include "toy.hpp"

namespace trainer::test {
namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};

TEST(WithoutReentrant, LoraOnSharedModulationIsBitEqual) {
  for (const at::ScalarType dtype : kTypes) {
    for (int64_t blocks = 2; blocks <= 8; ++blocks) {
      Toy toy({.dtype = dtype, .blocks = blocks});
      RecomputeState sites;
      const Outcome plain = toy.step({});
      // Timestep embedder and modulation come first in the list: their gradients pass through all blocks.
      for (std::size_t i = 0; i < 4; ++i) EXPECT_GT(plain.grads[i].abs().sum().item<float>(), 0);
      EXPECT_TRUE(toy.step(recomputed(&sites)) == plain) << dtype << ' ' << blocks;
      EXPECT_TRUE(toy.step(recomputed(&sites)) == plain) << dtype << ' ' << blocks << ", second step";
      EXPECT_TRUE(toy.step({}) == plain) << "plain runs repeat";
    }
  }
}

TEST(CheckpointModuleList, AnySubsetOfBlocksMayBeRecomputed) {
  Toy toy({.blocks = 4});
  const Outcome plain = toy.step({});
  struct Subset final : RecomputePolicy {
    unsigned bits = 0;
    CheckpointOptions choose(const Site& site) override { return {.recompute = (bits >> site.index & 1U) != 0}; }
  } subset;
  toy.policy = &subset;
  for (subset.bits = 0; subset.bits < 16; ++subset.bits) {
    RecomputeState sites;
    EXPECT_TRUE(toy.step(recomputed(&sites)) == plain) << subset.bits;
    EXPECT_EQ(sites.signatures.size(), static_cast<std::size_t>(__builtin_popcount(subset.bits)));
  }
}

/// Two ways to run a chain of lambdas on the same inputs; returns the gradients of `leaves`.
struct Chain {
  std::vector<std::unique_ptr<LambdaBlock>> blocks;
  std::vector<at::Tensor> leaves;
  std::function<Flow()> prologue;
  std::function<at::Tensor(const Flow&)> epilogue = [](const Flow& flow) {
    at::Tensor sum = at::zeros({});
    for (const at::Tensor& tensor : flow.carried)
      if (tensor.defined() && tensor.is_floating_point()) sum = sum + tensor.to(at::kFloat).pow(2).mean();
    return sum;
  };

  LambdaBlock& add(Body body, const std::vector<ParameterPtr>& owned = {}) {
    blocks.push_back(std::make_unique<LambdaBlock>("b" + std::to_string(blocks.size()), std::move(body)));
    for (const ParameterPtr& parameter : owned) blocks.back()->add(parameter);
    return *blocks.back();
  }
  std::vector<at::Tensor> gradients(const BlockRun& how) {
    for (at::Tensor& leaf : leaves) leaf.mutable_grad() = at::Tensor();
    std::vector<Block*> list;
    for (const auto& block : blocks) list.push_back(block.get());
    const at::Tensor loss = epilogue(run_chain(list, prologue(), how));
    loss.backward();
    std::vector<at::Tensor> result{loss.detach()};
    for (const at::Tensor& leaf : leaves) result.push_back(leaf.grad().defined() ? leaf.grad().clone() : at::Tensor());
    return result;
  }
  void expect_equal() {
    RecomputeState sites;
    const std::vector<at::Tensor> plain = gradients({});
    EXPECT_TRUE(same_bits(gradients(recomputed(&sites)), plain)) << "first step";
    EXPECT_TRUE(same_bits(gradients(recomputed(&sites)), plain)) << "second step";
    EXPECT_TRUE(same_bits(gradients(recomputed()), plain)) << "not verified";
    sites.always = true;
    EXPECT_TRUE(same_bits(gradients(recomputed(&sites)), plain)) << "always verified";
  }
};

/// A parameter used in several blocks (tied weights), in two ways within each: e4's third variant.
TEST(ParameterUsedInSeveralBlocks, IsBitEqual) {
  for (const at::ScalarType dtype : kTypes) {
    Chain chain;
    const ParameterPtr tied = make_trained("tied", {16, 16}, 1, dtype);
    chain.leaves = {tied->value()};
    for (uint64_t i = 0; i < 6; ++i) {
      const at::Tensor frozen = data(50 + i, {16, 16}, dtype) * 0.2;
      const auto body = [tied, frozen](const Flow& flow) {
        const at::Tensor h = at::silu(at::mm(at::layer_norm(flow.carried[0], {16}), tied->get()));
        return std::vector<at::Tensor>{flow.carried[0] + at::mm(at::mm(h, frozen), tied->get())};
      };
      chain.add(body, {tied});
    }
    chain.prologue = [dtype] { return Flow{{data(2, {5, 16}, dtype)}, {}, {}}; };
    chain.expect_equal();
  }
}

/// test_checkpointing_without_reentrant_parameter_used_in_an_out: also outside, and the hook fires once.
TEST(ParameterUsedInAnOut, HookFiresOnce) {
  Chain chain;
  const ParameterPtr weight = make_trained("weight", {8, 8}, 1);
  chain.leaves = {weight->value()};
  for (int i = 0; i < 3; ++i)
    chain.add(
        [weight](const Flow& flow) { return std::vector<at::Tensor>{at::mm(flow.carried[0], weight->get()).relu()}; },
        {weight});
  chain.prologue = [&] { return Flow{{at::mm(data(2, {5, 8}), weight->value())}, {}, {}}; };
  int fired = 0;
  std::vector<at::Tensor> seen;
  weight->value().register_hook([&](const at::Tensor& grad) {
    ++fired;
    seen.push_back(grad.clone());
  });
  const auto plain = chain.gradients({});
  EXPECT_EQ(fired, 1);
  RecomputeState sites;
  for (int step = 0; step < 2; ++step) {
    fired = 0;
    EXPECT_TRUE(same_bits(chain.gradients(recomputed(&sites)), plain));
    EXPECT_EQ(fired, 1) << "step " << step;
    EXPECT_TRUE(same_bits(seen.back(), seen.front()));
  }
}

/// A parameter registered twice in one block (a tied layer) still counts once.
TEST(ParameterUsedInAnOut, RegisteredTwice) {
  Chain chain;
  const ParameterPtr weight = make_trained("weight", {8, 8}, 1);
  chain.leaves = {weight->value()};
  chain.add([weight](const Flow& flow) { return std::vector<at::Tensor>{at::mm(flow.carried[0], weight->get())}; },
            {weight, weight});
  chain.prologue = [] { return Flow{{data(2, {5, 8})}, {}, {}}; };
  chain.expect_equal();
  EXPECT_TRUE(chain.leaves[0].grad().defined());
}

/// e4's second variant: a shared context read twice per block (keys and values), made by a trained layer.
TEST(CorrectGrad, OfASharedContextReadTwicePerBlock) {
  for (const at::ScalarType dtype : kTypes) {
    Chain chain;
    const at::Tensor maker = (data(1, {16, 16}) * 0.2).to(dtype).requires_grad_();
    chain.leaves = {maker};
    for (uint64_t i = 0; i < 8; ++i) {
      const at::Tensor q = data(10 + i, {16, 16}, dtype), k = data(30 + i, {16, 16}, dtype),
                       v = data(60 + i, {16, 16}, dtype);
      chain.add([q, k, v](const Flow& flow) {
        const at::Tensor query = at::mm(at::layer_norm(flow.carried[0], {16}), q);
        const at::Tensor scores = at::mm(query, at::mm(flow.shared[0], k).t()) * 0.1;
        return std::vector<at::Tensor>{flow.carried[0] + at::mm(at::softmax(scores, -1), at::mm(flow.shared[0], v))};
      });
    }
    chain.prologue = [dtype, maker] {
      return Flow{{data(2, {5, 16}, dtype)}, {at::mm(data(3, {7, 16}, dtype), maker)}, {}};
    };
    chain.expect_equal();
  }
}

/// e8: streams passed through unchanged, joined, split again: the number of carried tensors changes.
TEST(CarriedTensors, PassThroughJoinAndSplit) {
  for (const at::ScalarType dtype : kTypes) {
    Chain chain;
    const ParameterPtr a = make_trained("a", {8, 8}, 1, dtype), b = make_trained("b", {8, 8}, 2, dtype);
    at::Tensor x = data(3, {4, 8}, dtype).requires_grad_(), y = data(4, {3, 8}, dtype).requires_grad_();
    chain.leaves = {a->value(), b->value(), x, y};
    for (int i = 0; i < 2; ++i)
      chain.add(
          [a](const Flow& flow) {
            return std::vector<at::Tensor>{flow.carried[0] + at::silu(at::mm(flow.carried[0], a->get())),
                                           flow.carried[1]};
          },
          {a});
    chain.add([](const Flow& flow) { return std::vector<at::Tensor>{at::cat({flow.carried[0], flow.carried[1]})}; });
    chain.add([b](const Flow& flow) { return std::vector<at::Tensor>{at::mm(flow.carried[0], b->get()) * 1.5}; }, {b});
    // Both outputs are views of one tensor.
    chain.add([](const Flow& flow) {
      const at::Tensor all = flow.carried[0] * 2;
      return std::vector<at::Tensor>{all.slice(0, 0, 4), all.slice(0, 4, 7)};
    });
    chain.add(
        [a](const Flow& flow) {
          return std::vector<at::Tensor>{flow.carried[0], at::mm(flow.carried[1], a->get())};
        },
        {a});
    chain.prologue = [x, y] { return Flow{{x * 1, y * 1}, {}, {}}; };
    chain.expect_equal();
  }
}

/// Undefined shared tensors, integer and boolean masks, sizes, a shared scalar.
TEST(NonTensorInputs, AndOutputsUndefinedMasksAndScalars) {
  Chain chain;
  const ParameterPtr a = make_trained("a", {6}, 1);
  const at::Tensor scale = data(2, {}).requires_grad_();
  chain.leaves = {a->value(), scale};
  for (int i = 0; i < 3; ++i)
    chain.add(
        [a](const Flow& flow) {
          EXPECT_EQ(flow.shared.size(), 5U);
          EXPECT_FALSE(flow.shared[0].defined());
          EXPECT_FALSE(flow.shared[3].defined());
          EXPECT_EQ(flow.shared[1].scalar_type(), at::kBool);
          EXPECT_EQ(flow.shared[2].scalar_type(), at::kLong);
          EXPECT_EQ(flow.sizes, (std::vector<int64_t>{2, 3}));
          const at::Tensor x = flow.carried[0].index_select(0, flow.shared[2]) * a->get() * flow.shared[4];
          return std::vector<at::Tensor>{at::where(flow.shared[1], x, flow.carried[0])};
        },
        {a});
  const at::Tensor order = at::zeros({4}, at::kLong), mask = data(5, {4, 6}) > 0;
  chain.prologue = [order, mask, scale] {
    return Flow{{data(3, {4, 6})}, {at::Tensor(), mask, order, at::Tensor(), scale * 2}, {2, 3}};
  };
  chain.expect_equal();
}

/// Carried masks, undefined carried tensors, scalar and empty outputs.
TEST(WithBlockMask, CarriedMasksUndefinedScalarsAndEmpty) {
  Chain chain;
  const ParameterPtr a = make_trained("a", {6}, 1);
  chain.leaves = {a->value()};
  for (int i = 0; i < 2; ++i)
    chain.add(
        [a](const Flow& flow) {
          const at::Tensor x = flow.carried[0] * a->get();
          return std::vector<at::Tensor>{x, x > 0, at::Tensor(), x.sum(), x.slice(0, 0, 0), flow.carried[1]};
        },
        {a});
  chain.prologue = [] { return Flow{{data(3, {4, 6}), at::zeros({3}, at::kLong)}, {}, {}}; };
  chain.epilogue = [](const Flow& flow) { return flow.carried[0].pow(2).sum() + flow.carried[3]; };
  chain.expect_equal();
}

TEST(Outputs, UnusedOnesAndThoseWithoutGradient) {
  Chain chain;
  const ParameterPtr a = make_trained("a", {6, 6}, 1), unused = make_trained("unused", {6}, 2);
  chain.leaves = {a->value(), unused->value()};
  for (int i = 0; i < 2; ++i)
    chain.add(
        [a, unused](const Flow& flow) {
          const at::Tensor x = at::mm(flow.carried[0], a->get());
          return std::vector<at::Tensor>{x, x * unused->get(), x.detach() * 3};
        },
        {a, unused});
  chain.prologue = [] { return Flow{{data(3, {4, 6})}, {}, {}}; };
  chain.epilogue = [](const Flow& flow) { return flow.carried[0].pow(2).sum(); };
  chain.expect_equal();
  EXPECT_FALSE(chain.gradients(recomputed()).back().defined()) << "no zeros are made up for an unused parameter";
}

/// test_checkpoint_partial_grad, test_checkpoint_no_tensors: inputs without gradients, blocks without parameters.
TEST(CheckpointPartialGrad, FrozenInputsAndBlocksWithoutParameters) {
  Chain chain;
  at::Tensor x = data(1, {4, 6}).requires_grad_();
  chain.leaves = {x};
  chain.add([](const Flow& flow) {
    return std::vector<at::Tensor>{at::silu(flow.carried[0]) * flow.carried[1], flow.carried[1]};
  });
  chain.add([](const Flow& flow) { return std::vector<at::Tensor>{flow.carried[0].pow(2), flow.carried[1] + 1}; });
  chain.prologue = [x] { return Flow{{x, data(2, {4, 6})}, {}, {}}; };
  chain.expect_equal();
}

TEST(CheckpointNoTensors, FrozenBlocksKeepNothing) {
  LambdaBlock block("b", [](const Flow& flow) { return std::vector<at::Tensor>{flow.carried[0] * 2}; });
  RecomputeState sites;
  const Flow flow = run_chain({&block}, {{data(1, {3})}, {}, {}}, recomputed(&sites));
  EXPECT_FALSE(flow.carried[0].requires_grad());
  EXPECT_EQ(block.calls, 1);
  EXPECT_TRUE(sites.signatures.empty());
}

/// test_nested_checkpoint, test_two_children: blocks that run blocks, four deep, with a parameter on each level.
TEST(NestedCheckpoint, FourDeepAndTwoChildren) {
  Chain chain;
  std::vector<ParameterPtr> weights;
  std::vector<std::unique_ptr<LambdaBlock>> inner;
  BlockRun how;
  for (uint64_t level = 0; level < 4; ++level) {
    weights.push_back(make_trained("w" + std::to_string(level), {6, 6}, level));
    chain.leaves.push_back(weights.back()->value());
    LambdaBlock* child = inner.empty() ? nullptr : inner.back().get();
    const auto body = [weight = weights.back(), child, &how](const Flow& flow) {
      Flow next = flow;
      next.carried = {at::silu(at::mm(flow.carried[0], weight->get()))};
      if (child != nullptr)
        for (int twice = 0; twice < 2; ++twice) next.carried = run_block(*child, next, how);
      return next.carried;
    };
    inner.push_back(std::make_unique<LambdaBlock>("level" + std::to_string(level), body));
    for (const ParameterPtr& weight : weights) inner.back()->add(weight);
  }
  chain.add([&](const Flow& flow) { return run_block(*inner.back(), flow, how); }, weights);
  chain.prologue = [] { return Flow{{data(9, {4, 6})}, {}, {}}; };
  const auto plain = chain.gradients({});
  for (int i = 1; i <= 4; ++i) EXPECT_TRUE(plain[static_cast<std::size_t>(i)].defined());
  RecomputeState sites;
  how = recomputed(&sites);
  EXPECT_TRUE(same_bits(chain.gradients(recomputed(&sites)), plain));
  EXPECT_TRUE(same_bits(chain.gradients(recomputed(&sites)), plain));
}

}  // namespace
}  // namespace trainer::test
