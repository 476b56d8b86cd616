/// @file The verifying run: the heavy calls of a block are the same without gradients, with them, and in the recompute.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/silu.h>

#include <utility>

#include "toy.hpp"

namespace trainer::test {
namespace {

/// A block with a trained weight [6, 6] that may multiply for nothing; the bits of its output stay the same.
struct Block6 {
  ParameterPtr weight = make_trained("weight", {6, 6}, 1);
  LambdaBlock block{"single.7"};
  RecomputeState state;
  std::function<bool()> wasteful = [] { return false; };
  int64_t waste_width = 3;

  Block6() {
    block.add(weight);
    block.body = [this](const Flow& flow) {
      const at::Tensor& x = flow.carried[0];
      if (wasteful()) at::mm(x.detach(), data(5, {6, waste_width}));
      return std::vector<at::Tensor>{at::silu(at::mm(x, weight->get()))};
    };
  }
  at::Tensor forward() { return run_chain({&block}, {{data(2, {4, 6})}, {}, {}}, recomputed(&state)).carried[0]; }
  std::string error() {
    return error_of([&] { forward().sum().backward(); });
  }
};

TEST(OpTrace, CallsMadeOnlyWithoutGradients) {
  Block6 one;
  one.wasteful = [] { return !at::GradMode::is_enabled(); };
  EXPECT_EQ(
      one.error(),
      "block \"single.7\" made other heavy calls with gradients on than in forward: call 0 is mm(Float[4, 6], "
      "Float[6, 6]), in forward it was mm(Float[4, 6], Float[6, 3]). A block must make the same calls every time it "
      "runs, with gradients and without.");
  EXPECT_TRUE(one.state.signatures.empty()) << "a refused site is not verified";
}

TEST(OpTrace, ArgumentsArePartOfIt) {
  Block6 one;
  one.wasteful = [&] {
    one.waste_width = at::GradMode::is_enabled() ? 3 : 4;
    return true;
  };
  EXPECT_NE(one.error().find("call 0 is mm(Float[4, 6], Float[6, 3]), in forward it was mm(Float[4, 6], Float[6, 4])"),
            std::string::npos);
}

/// The output is the same to the bit, so that only the calls tell.
TEST(OpTrace, CallsMadeOnlyInTheRecompute) {
  Block6 one;
  const at::Tensor y = one.forward();
  one.wasteful = [] { return true; };
  const std::string message = error_of([&] { y.sum().backward(); });
  EXPECT_EQ(message.rfind("block \"single.7\" made other heavy calls in the recompute than in forward: ", 0), 0U)
      << message;
  EXPECT_EQ(one.error(), "") << "a later step is not verified";
}

TEST(OpTrace, FrozenLinearsCountOnceAndNothingInsideThem) {
  const Linear layer = make_linear("layer", 6, 6, at::kFloat, 3);
  Block6 one;
  one.block.body = [&](const Flow& flow) {
    const at::Tensor y = layer(flow.carried[0]) * one.weight->get().sum();
    return std::vector<at::Tensor>{at::GradMode::is_enabled() ? y : layer(flow.carried[0]) * one.weight->get().sum()};
  };
  EXPECT_NE(one.error().find("call 1 is nothing more, in forward it was frozen_linear(Float[4, 6])"),
            std::string::npos);
}

/// A frozen value that a block makes once and keeps is its own business.
TEST(OpTrace, AFrozenValueMayBeCached) {
  Block6 one;
  bool made = false;
  one.wasteful = [&] { return !std::exchange(made, true); };
  EXPECT_EQ(one.error(), "");
}

/// What changes after the first step is found when every step is verified.
TEST(Always, VerifiesEveryStep) {
  for (const bool always : {false, true}) {
    Block6 one;
    one.state.always = always;
    EXPECT_EQ(one.error(), "");
    const int calls = one.block.calls;
    EXPECT_EQ(one.error(), "");
    EXPECT_EQ(one.block.calls - calls, always ? 4 : 2) << "before, forward, after, recompute";
    one.wasteful = [] { return !at::GradMode::is_enabled(); };
    EXPECT_EQ(one.error().empty(), !always);
  }
}

}  // namespace
}  // namespace trainer::test
