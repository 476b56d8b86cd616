/// @file What a block must not do (change inputs, use random numbers, keep state), and what autograd may ask of a
/// recomputed block (retain_graph, inputs=, hooks, reentrant backward) or may not (create_graph).
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/autograd.h>

#include "toy.hpp"

namespace trainer::test {
namespace {

using torch::autograd::grad;

/// One block with a trained weight [6, 6], on a carried [4, 6] and a shared [1, 6].
struct One {
  ParameterPtr weight = make_trained("weight", {6, 6}, 1);
  at::Tensor x = data(2, {4, 6}).requires_grad_(), m = data(3, {1, 6}).requires_grad_();
  LambdaBlock block{"single.7"};
  RecomputeState sites;
  Flow flow{{x * 1}, {m * 1}, {}};

  explicit One(Body body) {
    block.body = std::move(body);
    block.add(weight);
  }
  One() {
    block.body = [this](const Flow& f) {
      return std::vector<at::Tensor>{at::silu(at::mm(f.carried[0], weight->get())) * f.shared[0]};
    };
    block.add(weight);
  }
  at::Tensor run(bool recompute = true) {
    return run_chain({&block}, flow, recompute ? recomputed(&sites) : BlockRun{}).carried[0];
  }
  std::string error() {
    return error_of([&] { run().sum().backward(); });
  }
};

void expect_starts(const std::string& message, const std::string& start) {
  EXPECT_EQ(message.substr(0, start.size()), start) << message;
}

TEST(InPlace, OnACarriedTensorIsRefused) {
  One one([](const Flow& f) { return std::vector<at::Tensor>{f.carried[0].mul_(2) + f.shared[0]}; });
  EXPECT_EQ(one.error(),
            "block \"single.7\" changed its input carried[0] in place; a recompute would read the changed values");
}
TEST(InPlace, OnASharedTensorIsRefused) {
  One one([](const Flow& f) { return std::vector<at::Tensor>{f.carried[0] + f.shared[0].add_(1)}; });
  EXPECT_EQ(one.error(),
            "block \"single.7\" changed its input shared[0] in place; a recompute would read the changed values");
}
TEST(InPlace, OnAFrozenInputIsRefusedAlsoUnverified) {
  One one([&](const Flow& f) { return std::vector<at::Tensor>{f.carried[0].add_(1) * f.shared[0]}; });
  one.flow.carried = {data(2, {4, 6})};
  EXPECT_NE(error_of([&] { run_chain({&one.block}, one.flow, recomputed()); }).find("carried[0] in place"),
            std::string::npos);
}
TEST(InPlace, OnValuesOfItsOwnIsFine) {
  One one([](const Flow& f) { return std::vector<at::Tensor>{(f.carried[0] * f.shared[0]).add_(1).relu_()}; });
  EXPECT_EQ(one.error(), "");
}
/// Holds on to the tensors themselves.
class AliasStore final : public ActivationStore {
 public:
  std::shared_ptr<void> put(const at::Tensor& tensor, const Site&) override {
    return std::make_shared<at::Tensor>(tensor.detach());
  }
  at::Tensor take(const std::shared_ptr<void>& handle, const Site&) override {
    return *std::static_pointer_cast<at::Tensor>(handle);
  }
};
/// test_pack_hook_with_inplace_modification_should_fail.
TEST(PackHookWithInplaceModification, ShouldFailAsItsForwardIsOver) {
  const char* const expected =
      "block \"single.7\" cannot be recomputed: one of its inputs or parameters was changed in place after its forward";
  AliasStore store;
  for (int which = 0; which < 6; ++which) {
    One one;
    BlockRun how = recomputed(&one.sites);
    if (which >= 3) how.store = &store;
    const at::Tensor y = run_chain({&one.block}, one.flow, how).carried[0];
    {
      const at::NoGradGuard no_grad;
      if (which % 3 == 0) one.flow.carried[0].add_(1);
      if (which % 3 == 1) one.flow.shared[0].add_(1);
      if (which % 3 == 2) one.weight->value().add_(1);
    }
    EXPECT_EQ(error_of([&] { y.sum().backward(); }), expected) << which;
  }
}

/// test_checkpointing_non_reentrant_autocast_cpu.
TEST(AutocastCpu, IsRefused) {
  One one;
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const std::string message = error_of([&] { one.run(); });
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(message,
            "block \"single.7\" runs under autocast, which its recompute would not see; load the model in the dtype it "
            "computes in");
  EXPECT_EQ(one.error(), "");
}

/// test_checkpoint_detects_non_determinism, test_checkpoint_rng_cpu: random numbers must come from outside.
TEST(RandomCpu, NumbersAreRefused) {
  One one(
      [](const Flow& f) { return std::vector<at::Tensor>{f.carried[0] * at::rand_like(f.carried[0]) * f.shared[0]}; });
  expect_starts(one.error(),
                "block \"single.7\" computed other values for output 0 with gradients on than in forward. ");
}
TEST(NonlocalMutation, OfANumberIsRefused) {
  int calls = 0;
  One one([&](const Flow& f) { return std::vector<at::Tensor>{f.carried[0] * f.shared[0], f.shared[0] + calls++}; });
  expect_starts(one.error(),
                "block \"single.7\" computed other values for output 1 with gradients on than in forward. ");
}
/// Changes only after the verified runs: found in the recompute of the same step.
TEST(DetectsNonDeterminism, StateChangedBeforeBackward) {
  double factor = 1;
  One one([&](const Flow& f) { return std::vector<at::Tensor>{f.carried[0] * f.shared[0] * factor}; });
  const at::Tensor y = one.run();
  factor = 2;
  expect_starts(error_of([&] { y.sum().backward(); }),
                "block \"single.7\" computed other values for output 0 in the recompute than in forward. ");
}
/// Metadata is compared on every step.
TEST(DetectsNonDeterminism, OtherShapeCountOrDtype) {
  int mode = 0;
  One one([&](const Flow& f) {
    const at::Tensor y = f.carried[0] * f.shared[0];
    if (mode == 1) return std::vector<at::Tensor>{y.slice(0, 0, 2)};
    if (mode == 2) return std::vector<at::Tensor>{y, y};
    if (mode == 3) return std::vector<at::Tensor>{y.to(at::kDouble)};
    if (mode == 4) return std::vector<at::Tensor>{at::Tensor()};
    return std::vector<at::Tensor>{y};
  });
  const char* const expected[] = {"",
                                  "block \"single.7\" returned output 0 as a Float tensor [4, 6] in forward and as a "
                                  "Float tensor [2, 6] in the recompute",
                                  "block \"single.7\" returned 1 tensors in forward and 2 in the recompute",
                                  "block \"single.7\" returned output 0 as a Float tensor [4, 6] in forward and as a "
                                  "Double tensor [4, 6] in the recompute",
                                  "block \"single.7\" returned output 0 only once: it is undefined in the recompute"};
  for (const bool verified : {true, false}) {
    for (int later = 0; later < 5; ++later) {
      mode = 0;
      const at::Tensor y = run_chain({&one.block}, one.flow, recomputed(verified ? &one.sites : nullptr)).carried[0];
      mode = later;
      EXPECT_EQ(error_of([&] { y.sum().backward(); }), expected[later]);
    }
  }
}

TEST(CreateGraph, IsRefusedNamingTheBlock) {
  One one;
  const at::Tensor loss = one.run().sum();
  EXPECT_EQ(
      error_of([&] { grad({loss}, {one.x}, {}, true, /*create_graph=*/true); }),
      "block \"single.7\" is recomputed and has no second derivative (create_graph); exclude it from checkpointing "
      "to differentiate twice");
  // The refused attempt leaves the graph usable.
  EXPECT_TRUE(grad({loss}, {one.x})[0].defined());
}

/// test_is_retain_graph, nested retain: twice through one graph, equal; a third time after it was freed is an error.
TEST(GraphExecutionGroup, TwiceIsEqualAndThenItIsFreed) {
  One one;
  const at::Tensor plain = grad({one.run(false).pow(2).sum()}, {one.x})[0];
  for (int step = 0; step < 2; ++step) {  // verified, then not
    const at::Tensor loss = one.run().pow(2).sum();
    const at::Tensor first = grad({loss}, {one.x}, {}, /*retain_graph=*/true)[0];
    const at::Tensor second = grad({loss}, {one.x}, {}, /*retain_graph=*/false)[0];
    EXPECT_TRUE(same_bits(first, plain));
    EXPECT_TRUE(same_bits(second, plain));
  }
  // test_checkpoint_non_tensor_inputs_outputs: a second backward raises. The block itself, below no other node:
  const at::Tensor y = one.run();
  const at::Tensor ones = data(5, {4, 6});
  grad({y}, {one.x}, {ones});
  EXPECT_THROW(grad({y}, {one.x}, {ones}), c10::Error);
}

/// test_checkpoint_valid: autograd::grad with inputs works, for any subset of them.
TEST(CheckpointValid, GradWithInputs) {
  One one;
  const auto gradients = [&](bool recompute) {
    const at::Tensor loss = one.run(recompute).pow(2).sum();
    std::vector<at::Tensor> all = grad({loss}, {one.x, one.m, one.weight->value()}, {}, true);
    all.push_back(grad({loss}, {one.m}, {}, true)[0]);
    all.push_back(grad({loss}, {one.weight->value()}, {}, true)[0]);
    all.push_back(grad({loss}, {one.flow.carried[0]})[0]);
    return all;
  };
  EXPECT_TRUE(same_bits(gradients(true), gradients(false)));
  EXPECT_FALSE(one.x.grad().defined()) << "nothing is accumulated into leaves";
  EXPECT_FALSE(one.weight->value().grad().defined());
}

/// test_checkpoint_trigger: with gradients off a block is called once and nothing is recorded, also nested.
TEST(CheckpointTrigger, GradModeOff) {
  One one;
  {
    const at::NoGradGuard off;
    EXPECT_FALSE(one.run().requires_grad());
    {
      const at::AutoGradMode on(true);
      EXPECT_TRUE(one.run().requires_grad());
    }
    EXPECT_FALSE(at::GradMode::is_enabled());
    EXPECT_FALSE(one.run().requires_grad());
  }
  EXPECT_TRUE(at::GradMode::is_enabled());
  EXPECT_EQ(one.block.calls, 1 + 3 + 1) << "verified only where gradients are on: before, forward, after";
  EXPECT_EQ(one.sites.signatures.size(), 1U);
}

TEST(CheckpointTrigger, OneForwardAndOneRecomputePerLaterStep) {
  One one;
  one.run().sum().backward();
  EXPECT_EQ(one.block.calls, 4);
  one.run().sum().backward();
  EXPECT_EQ(one.block.calls, 6);
  // Another shape, another dtype of an input, other requires_grad bits: verified anew.
  one.flow.carried = {data(2, {5, 6}).requires_grad_()};
  one.run();
  EXPECT_EQ(one.block.calls, 9);
  one.flow.carried = {data(2, {5, 6})};
  one.run();
  EXPECT_EQ(one.block.calls, 12);
  EXPECT_EQ(one.sites.signatures.size(), 3U);
  one.sites.always = true;
  one.run();
  EXPECT_EQ(one.block.calls, 15);
}

/// test_checkpointing_without_reentrant_detached_tensor; a custom function of LibTorch inside is frozen_linear.
TEST(DetachedTensor, InsideABlockIsEqual) {
  One one([](const Flow& f) { return std::vector<at::Tensor>{f.carried[0].detach() * f.shared[0] + f.carried[0]}; });
  const auto plain = grad({one.run(false).pow(2).sum()}, {one.x, one.m});
  EXPECT_TRUE(same_bits(grad({one.run().pow(2).sum()}, {one.x, one.m}), plain));
}

/// test_reentrant_with_leaf_variable_hook, test_reentrant_with_non_leaf_variable_hook: hooks see each gradient once.
TEST(Reentrant, WithLeafVariableHookAndNonLeafOne) {
  One one;
  for (const bool recompute : {false, true}) {
    int leaf = 0, inner = 0;
    const auto id = one.m.register_hook([&](const at::Tensor&) { ++leaf; });
    Flow flow{{one.x * 1}, {one.m * 1}, {}};
    flow.shared[0].register_hook([&](const at::Tensor&) { ++inner; });
    const BlockRun how = recompute ? recomputed(&one.sites) : BlockRun{};
    const Flow end = run_chain({&one.block, &one.block, &one.block}, flow, how);
    end.carried[0].sum().backward();
    EXPECT_EQ(leaf, 1);
    EXPECT_EQ(inner, 1) << "three blocks read it";
    one.m.remove_hook(id);
  }
}

/// test_deep_reentrant, test_input_buffer_accum: a backward of its own inside a backward hook, beside recomputes.
TEST(Reentrant, BackwardInsideAHook) {
  One one;
  const auto gradient = [&](bool recompute) {
    One local;
    const at::Tensor y = local.run(recompute);
    at::Tensor inner;
    y.register_hook([&](const at::Tensor&) {
      const at::AutoGradMode on(true);
      One other;
      inner = grad({other.run(true).sum()}, {other.x})[0];
    });
    y.pow(2).sum().backward();
    return std::vector<at::Tensor>{local.x.grad(), local.m.grad(), local.weight->value().grad(), inner};
  };
  EXPECT_TRUE(same_bits(gradient(true), gradient(false)));
}

/// A thousand recomputed blocks in a row: no recursion of ours.
TEST(DeepReentrant, ThousandBlocks) {
  One one([](const Flow& f) { return std::vector<at::Tensor>{f.carried[0] + f.shared[0] * 0.001}; });
  const std::vector<Block*> blocks(1000, &one.block);
  const auto gradients = [&](const BlockRun& how) {
    return grad({run_chain(blocks, one.flow, how).carried[0].sum()}, {one.x, one.m});
  };
  EXPECT_TRUE(same_bits(gradients(recomputed(&one.sites)), gradients({})));
}

}  // namespace
}  // namespace trainer::test
