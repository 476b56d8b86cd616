/// @file A recompute that differs from the forward, a kept output that was changed, and nesting: one error each, naming
/// block and operation; never a wrong gradient.
#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>

#include "chain.hpp"

namespace trainer::test {
namespace {

using selective::SaveList;

/// A block whose recompute may be told from its forward: nothing is verified, so the second run is the recompute.
class Mismatch : public testing::Test {
 protected:
  void SetUp() override {
    single.block.add(w);
    single.carried = {data(2, {6, 8})};
  }
  [[nodiscard]] bool again() const { return single.block.calls > 1; }
  std::string error(const Body& body, const std::string& save = "mm") {
    single.block.body = body;
    single.block.calls = 0;
    SaveList list({save});
    const std::string message = error_of([&] { single.step(keeping(list)); });
    recovers();
    return message;
  }
  /// The next block runs, whatever happened before.
  static void recovers() {
    Chain chain({.blocks = 1});
    SaveList list({"mm"});
    EXPECT_TRUE(same_bits(chain.step({}), chain.step(keeping(list))));
  }
  /// A block that multiplies by `w`.
  [[nodiscard]] std::unique_ptr<Single> product_block(const std::string& name) const {
    const Body body = [this](const Flow& flow) -> std::vector<at::Tensor> {
      return {at::mm(flow.carried[0], w->get())};
    };
    auto made = std::make_unique<Single>(body, name);
    made->block.add(w);
    return made;
  }
  ParameterPtr w = make_trained("w", {8, 8}, 1);
  at::Tensor bias = data(3, {8});
  Single single{{}, "double.3"};
};

TEST_F(Mismatch, NewOpDuringRecompute) {
  EXPECT_EQ(
      error([&](const Flow& flow) -> std::vector<at::Tensor> {
        const at::Tensor& x = flow.carried[0];
        if (again()) return {at::addmm(bias, at::mm(x, w->get()), w->get())};
        return {at::mm(at::addmm(bias, x, w->get()), w->get())};
      }),
      "block \"double.3\", mm #0: the recompute calls mm (Float[6, 8], Float[8, 8]) where the forward called "
      "addmm #0 (Float[8], Float[6, 8], Float[8, 8], 1, 1). A block must make the same calls every time it runs.");
}

TEST_F(Mismatch, FewerCalls) {
  EXPECT_EQ(error([&](const Flow& flow) -> std::vector<at::Tensor> {
              const at::Tensor y = at::mm(flow.carried[0], w->get());
              return {again() ? y : at::mm(y, w->get())};
            }),
            "block \"double.3\": the recompute made 1 heavy calls, the forward 2; the first one missing is mm #1");
}

TEST_F(Mismatch, ExtraInvocationDuringRecompute) {
  EXPECT_EQ(error([&](const Flow& flow) -> std::vector<at::Tensor> {
              const at::Tensor y = at::mm(flow.carried[0], w->get());
              return {again() ? at::mm(y, w->get()) : y};
            }),
            "block \"double.3\", mm #1: the recompute calls mm (Float[6, 8], Float[8, 8]) where the forward called "
            "nothing more. A block must make the same calls every time it runs.");
}

TEST_F(Mismatch, NumberAmongTheArguments) {
  const std::string message = error(
      [&](const Flow& flow) -> std::vector<at::Tensor> {
        return {at::addmm(bias, flow.carried[0], w->get(), 1, again() ? 2 : 1)};
      },
      "addmm");
  EXPECT_EQ(message,
            "block \"double.3\", addmm #0: the recompute calls addmm (Float[8], Float[6, 8], Float[8, 8], 1, 2) where "
            "the forward called addmm #0 (Float[8], Float[6, 8], Float[8, 8], 1, 1). A block must make the same calls "
            "every time it runs.");
}

TEST_F(Mismatch, Shape) {
  const std::string message = error([&](const Flow& flow) -> std::vector<at::Tensor> {
    return {at::mm(again() ? flow.carried[0].slice(0, 0, 4) : flow.carried[0], w->get())};
  });
  EXPECT_EQ(
      message,
      "block \"double.3\", mm #0: the recompute calls mm (Float[4, 8], Float[8, 8]) where the forward called mm #0 "
      "(Float[6, 8], Float[8, 8]). A block must make the same calls every time it runs.");
}

TEST_F(Mismatch, Dtype) {
  const std::string message = error([&](const Flow& flow) -> std::vector<at::Tensor> {
    const at::ScalarType type = again() ? at::kDouble : at::kFloat;
    return {at::mm(flow.carried[0].to(type), w->get().to(type)).to(at::kFloat)};
  });
  EXPECT_EQ(
      message,
      "block \"double.3\", mm #0: the recompute calls mm (Double[6, 8], Double[8, 8]) where the forward called mm "
      "#0 (Float[6, 8], Float[8, 8]). A block must make the same calls every time it runs.");
}

TEST_F(Mismatch, WithNothingKeptElisionChecksTheCallsToo) {
  RecomputeState sites;
  int left = 4;  // verified twice, recorded once; the recompute differs
  single.block.body = [&](const Flow& flow) -> std::vector<at::Tensor> {
    const at::Tensor y = at::mm(flow.carried[0], w->get());
    return {--left > 0 ? y : at::mm(y, w->get())};
  };
  const std::string message = error_of([&] { single.step(eliding(sites)); });
  EXPECT_EQ(message.substr(0, 27), "block \"double.3\", mm #1: th") << message;
}

TEST_F(Mismatch, VersionCounterOfAKeptOutput) {
  const std::string expected =
      "block \"double.3\", mm #0: its kept output was changed in place after the forward; exclude the op from what is "
      "kept, or write the block without the in-place operation";
  EXPECT_EQ(error([&](const Flow& flow) -> std::vector<at::Tensor> {
              at::Tensor y = at::mm(flow.carried[0], w->get());
              y.mul_(2);
              return {y};
            }),
            expected);
  EXPECT_EQ(error([&](const Flow& flow) -> std::vector<at::Tensor> {
              const at::Tensor y = at::mm(flow.carried[0], w->get());
              y.view({2, 3, 8}).select(0, 1).add_(1);
              return {at::silu(y)};
            }),
            expected);
}

TEST_F(Mismatch, VersionCounterOfAKeptOutputOfItsReader) {
  single.block.body = [&](const Flow& flow) -> std::vector<at::Tensor> { return {at::mm(flow.carried[0], w->get())}; };
  SaveList save({"mm"});
  BlockRun how = keeping(save);
  const at::Tensor y = run_chain({&single.block}, {single.carried, {}, {}}, how).carried[0];
  y.detach().mul_(3);
  EXPECT_NE(error_of([&] { y.sum().backward(); }).find("mm #0: its kept output was changed in place"),
            std::string::npos);
}

TEST_F(Mismatch, KeptFrozenLinearChangedInPlace) {
  const Linear linear = single.block.add(make_linear("frozen", 8, 8, at::kFloat, 5));
  const std::string message = error(
      [&](const Flow& flow) -> std::vector<at::Tensor> {
        at::Tensor y = linear(at::silu(flow.carried[0] + w->get().sum()));
        y.mul_(2);
        return {y};
      },
      "frozen_linear");
  EXPECT_EQ(message.substr(0, 72), "block \"double.3\", frozen_linear #0: its kept output was changed in place");
}

TEST_F(Mismatch, InplaceOpOnWhatIsNotKept) {
  const Linear linear = single.block.add(make_linear("frozen", 8, 8, at::kFloat, 5));
  single.block.body = [&](const Flow& flow) -> std::vector<at::Tensor> {
    at::Tensor y = at::mm(flow.carried[0], w->get());
    y.mul_(2);
    return {linear(at::silu(y))};
  };
  SaveList save({"frozen_linear"});
  RecomputeState sites;
  EXPECT_TRUE(same_bits(single.step({}), single.step(keeping(save, &sites))));
}

TEST_F(Mismatch, NestedBlocks) {
  const auto inner = product_block("inner");
  for (const bool verify : {false, true}) {
    RecomputeState sites;
    SaveList save({"mm"});
    const BlockRun how = keeping(save, verify ? &sites : nullptr);
    single.block.body = [&](const Flow& flow) -> std::vector<at::Tensor> { return run_block(inner->block, flow, how); };
    EXPECT_EQ(error_of([&] { single.step(how); }),
              "block \"inner\" runs inside the recomputed block \"double.3\", before its first heavy operation; "
              "recomputed blocks cannot be nested");
    recovers();
  }
}

TEST_F(Mismatch, NestedBlocksNameTheOperationBefore) {
  const auto inner = product_block("inner");
  SaveList save({"mm"});
  const BlockRun how = keeping(save);
  // Whether the block nests in its forward already, or in the recompute alone.
  for (const int from : {1, 2}) {
    single.block.calls = 0;
    single.block.body = [&](const Flow& flow) -> std::vector<at::Tensor> {
      const at::Tensor y = at::mm(at::mm(flow.carried[0], w->get()), w->get());
      if (single.block.calls < from) return {y};
      return run_block(inner->block, {{y}, {}, {}}, how);
    };
    EXPECT_EQ(error_of([&] { single.step(how); }),
              "block \"inner\" runs inside the recomputed block \"double.3\", after its mm #1 (Float[6, 8], Float[8, "
              "8]); recomputed blocks cannot be nested");
    recovers();
  }
}

TEST_F(Mismatch, ABlockRecomputedInFullInsideOneThatKeeps) {
  const auto inner = product_block("inner");
  for (const bool verify : {false, true}) {
    RecomputeState sites;
    SaveList save({"mm"});
    const BlockRun inside = recomputed(verify ? &sites : nullptr);
    single.block.body = [&](const Flow& flow) -> std::vector<at::Tensor> {
      return run_block(inner->block, flow, inside);
    };
    const std::vector<at::Tensor> plain = single.step({});
    std::vector<at::Tensor> got;
    const std::string message = error_of([&] { got = single.step(keeping(save, verify ? &sites : nullptr)); });
    EXPECT_TRUE(message.find("cannot be nested") != std::string::npos || same_bits(plain, got)) << verify << message;
  }
}

}  // namespace
}  // namespace trainer::test
