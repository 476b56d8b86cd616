/// @file Small cases of PyTorch's checkpoint tests that have no other home here: randomness, repeated outputs, errors
/// between runs. The whole list: docs/pytorch-tests.md.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "toy.hpp"

namespace trainer::test {
namespace {

/// A block with one trained weight; loss and gradients of its outputs' sum of squares.
struct OneBlock {
  ParameterPtr weight = make_trained("weight", {6, 6}, 1);
  at::Tensor x = data(2, {4, 6}).requires_grad_();
  LambdaBlock block{"b"};
  RecomputeState state;

  explicit OneBlock(Body body) {
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
TEST(CheckpointRng, CpuDropoutOfLibTorchIsRefused) {
  OneBlock one([&](const Flow& flow) {
    return std::vector<at::Tensor>{at::dropout(at::mm(flow.carried[0], one.weight->get()), 0.5, /*train=*/true)};
  });
  EXPECT_NE(error_of([&] { one.step(recomputed(&one.state)); }).find("computed other values for output 0"),
            std::string::npos);
}

/// tags_dropout: keyed by what the block is given, the mask is the same every time.
TEST(CheckpointRng, KeyedDropoutIsEqual) {
  OneBlock one([&](const Flow& flow) {
    const at::Tensor mask = (data(99, {4, 6}) > 0).to(at::kFloat) * 2;
    return std::vector<at::Tensor>{at::mm(flow.carried[0] * mask, one.weight->get())};
  });
  one.expect_equal();
}

/// test_checkpoint_not_preserve_rng_state_and_without_reentrant: there is nothing to preserve. (A block that draws is
/// refused: RandomCpu.NumbersAreRefused.)
TEST(CheckpointNotPreserveRngState, AndWithoutReentrantItIsNotTouched) {
  const at::Generator generator = at::detail::getDefaultCPUGenerator();
  const auto state = [&] { return at::Tensor::wrap_tensor_impl(generator.unsafeGetGeneratorImpl()->get_state()); };
  OneBlock one(
      [&](const Flow& flow) { return std::vector<at::Tensor>{at::silu(at::mm(flow.carried[0], one.weight->get()))}; });
  const at::Tensor before = state();
  one.step(recomputed(&one.state));
  one.step(recomputed(&one.state));
  EXPECT_TRUE(same_bits(before, state()));
}

/// return_same_element_twice.
TEST(ReturnSameElementTwice, IsEqual) {
  OneBlock one([&](const Flow& flow) {
    const at::Tensor y = at::silu(at::mm(flow.carried[0], one.weight->get()));
    return std::vector<at::Tensor>{y, y};
  });
  one.expect_equal();
}
/// The same through views and through the input itself.
TEST(OutputAlreadyHasAutogradMeta, ViewsAndTheInputItself) {
  OneBlock one([&](const Flow& flow) {
    const at::Tensor y = at::mm(flow.carried[0], one.weight->get());
    return std::vector<at::Tensor>{y, y.t(), flow.carried[0], y.slice(0, 0, 2)};
  });
  one.expect_equal();
}

/// test_checkpointing_without_reentrant_custom_function_works.
struct Square : torch::autograd::Function<Square> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x) {
    ctx->save_for_backward({x});
    return x * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    return {2 * ctx->get_saved_variables()[0] * grads[0]};
  }
};
TEST(CustomFunction, WorksInsideABlock) {
  OneBlock one([&](const Flow& flow) {
    return std::vector<at::Tensor>{Square::apply(at::mm(flow.carried[0], one.weight->get()))};
  });
  one.expect_equal();
}

/// A block that throws in its call number `bad`.
struct Failing {
  int bad = 0;
  OneBlock one{[this](const Flow& flow) {
    if (one.block.calls == bad) throw Error(ExitCode::failed, "stop");
    return std::vector<at::Tensor>{at::silu(at::mm(flow.carried[0], one.weight->get()))};
  }};
  /// The next step dies `calls` calls of the block later; the one after it is the plain one again.
  void expect_recovery(const BlockRun& how, int calls) {
    const std::vector<at::Tensor> plain = one.step({});
    bad = one.block.calls + calls;
    EXPECT_EQ(error_of([&] { one.step(how); }), "stop") << calls;
    EXPECT_TRUE(at::GradMode::is_enabled());
    EXPECT_TRUE(same_bits(one.step(how), plain)) << calls;
  }
};
/// test_checkpoint_valid_reset_on_error: `grad` with inputs after a backward that died in its recompute.
TEST(ValidResetOnError, GradWorksAfterAFailedRecompute) {
  Failing failing;
  failing.expect_recovery(recomputed(), 2);
  failing.expect_recovery(recomputed(&failing.one.state), 4);
}
/// composable checkpoint's test_clears_state_on_error_in_forward.
TEST(ClearsStateOnErrorInForward, TheNextStepIsThePlainOne) {
  Failing failing;
  failing.expect_recovery(recomputed(), 1);
  for (const int call : {1, 2, 3}) {
    RecomputeState fresh;
    failing.expect_recovery(recomputed(&fresh), call);
  }
}

/// test_checkpoint_non_tensor_inputs_outputs: numbers beside tensors; a second backward raises.
TEST(NonTensorInputsOutputs, ASecondBackwardIsRefused) {
  OneBlock one([&](const Flow& flow) {
    EXPECT_EQ(flow.sizes, (std::vector<int64_t>{3}));
    return std::vector<at::Tensor>{at::mm(flow.carried[0], one.weight->get()) * flow.sizes[0]};
  });
  const at::Tensor y = run_chain({&one.block}, {{one.x * 1}, {}, {3}}, recomputed(&one.state)).carried[0];
  const at::Tensor ones = data(5, {4, 6});
  EXPECT_TRUE(same_bits(torch::autograd::grad({y}, {one.x}, {ones})[0], at::mm(ones * 3, one.weight->value().t())));
  EXPECT_THROW(torch::autograd::grad({y}, {one.x}, {ones}), c10::Error);
}

/// composable checkpoint's test_tensor_only_cpu: two blocks of one tensor.
TEST(TensorOnlyCpu, TwoBlocksAreEqual) {
  OneBlock one(
      [&](const Flow& flow) { return std::vector<at::Tensor>{at::mm(flow.carried[0], one.weight->get()).relu()}; });
  one.expect_equal(2);
}
/// composable checkpoint's test_multi_args: several tensors in and out.
TEST(MultiArgs, SeveralTensorsAreEqual) {
  OneBlock one([&](const Flow& flow) {
    const at::Tensor y = at::silu(at::mm(flow.carried[0], one.weight->get()) + flow.shared[0]);
    return std::vector<at::Tensor>{y, flow.carried[1] - y * flow.shared[1]};
  });
  const at::Tensor z = data(3, {4, 6}).requires_grad_(), a = data(4, {6}).requires_grad_(), b = data(5, {6});
  const auto gradients = [&](const BlockRun& how) {
    const Flow end = run_chain({&one.block, &one.block}, {{one.x * 1, z * 1}, {a * 1, b}, {}}, how);
    return torch::autograd::grad({(end.carried[0] * end.carried[1]).sum()}, {one.x, z, a, one.weight->value()});
  };
  const std::vector<at::Tensor> plain = gradients({});
  for (int step = 0; step < 2; ++step) EXPECT_TRUE(same_bits(gradients(recomputed(&one.state)), plain));
}

/// tags_recomputed_rand: keyed noise is the same noise in the recompute.
TEST(RecomputedRand, KeyedNoiseIsTheSame) {
  OneBlock one([&](const Flow& flow) {
    return std::vector<at::Tensor>{at::silu(at::mm(flow.carried[0], one.weight->get())) * data(7, {4, 6})};
  });
  one.expect_equal();
}

/// nonlocal_list_mutation_hidden: a list that every call makes longer.
TEST(NonlocalListMutationHidden, IsRefused) {
  std::vector<at::Tensor> list;
  OneBlock one([&](const Flow& flow) {
    list.push_back(at::mm(flow.carried[0], one.weight->get()).detach());
    return std::vector<at::Tensor>{flow.carried[0] + list.back() * static_cast<double>(list.size())};
  });
  EXPECT_NE(error_of([&] { one.step(recomputed(&one.state)); }).find("block \"b\" computed other values for output 0"),
            std::string::npos);
}

/// test_same_graph: one block twice in a chain, its graph ended by one loss.
TEST(SameGraph, OneBlockManyTimes) {
  OneBlock one(
      [&](const Flow& flow) { return std::vector<at::Tensor>{at::silu(at::mm(flow.carried[0], one.weight->get()))}; });
  one.expect_equal(5);
}

/// test_reentrant_backwards: a backward inside a block would end in its recompute's leaves; it may have its own graph.
TEST(ReentrantBackwards, OfABlocksOwnGraphAreFine) {
  OneBlock one([&](const Flow& flow) {
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
TEST(SetEarlyStop, NoRecomputionNeededRunsOnceOrNever) {
  OneBlock one([&](const Flow& flow) { return std::vector<at::Tensor>{flow.carried[0] + 1, flow.carried[0] + 2}; });
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
