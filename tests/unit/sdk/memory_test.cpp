/// @file Bytes: a recomputed chain keeps the inputs of its blocks and nothing else, and gives them back block by block.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/silu.h>
#include <planner/byte_counter.hpp>

#include "toy.hpp"

namespace trainer::test {
namespace {

/// Blocks with a frozen two-layer MLP four times as wide as their input [rows, width].
struct Wide {
  static constexpr int64_t kRows = 128, kWidth = 32, kBlocks = 8;
  static constexpr int64_t kInput = kRows * kWidth * 4;  ///< bytes of one carried tensor
  std::vector<std::unique_ptr<LambdaBlock>> blocks;
  at::Tensor x = data(1, {kRows, kWidth}).requires_grad_();
  RecomputeState sites;
  std::function<void()> enter = [] {};

  Wide() {
    planner::install_byte_counter();
    for (uint64_t i = 0; i < kBlocks; ++i) {
      const Linear up = make_linear("up", kWidth, 4 * kWidth, at::kFloat, 10 + i);
      const Linear down = make_linear("down", 4 * kWidth, kWidth, at::kFloat, 30 + i);
      blocks.push_back(std::make_unique<LambdaBlock>("b" + std::to_string(i), [this, up, down](const Flow& flow) {
        enter();
        const at::Tensor& in = flow.carried[0];
        return std::vector<at::Tensor>{in + down(at::silu(up(in)) * at::silu(up(in * 0.5)))};
      }));
    }
  }
  at::Tensor loss(const BlockRun& how) {
    std::vector<Block*> list;
    for (const auto& block : blocks) list.push_back(block.get());
    return run_chain(list, {{x}, {}, {}}, how).carried[0].sum();
  }
  /// Bytes that a forward leaves alive, the loss included.
  int64_t kept(const BlockRun& how) {
    const planner::PeakMark mark(at::kCPU);
    const at::Tensor graph = loss(how);
    return mark.held();
  }
};

/// test_checkpointing, test_checkpointing_without_reentrant_memory_savings.
TEST(MemorySavings, OnlyInputsAreKept) {
  Wide wide;
  const int64_t plain = wide.kept({});
  // The input of the first block is a leaf that is there anyway, the output of the last is freed after the sum. Some
  // 4-byte placeholders and the loss remain.
  const int64_t inputs = (Wide::kBlocks - 1) * Wide::kInput;
  const int64_t first = wide.kept(recomputed(&wide.sites));
  EXPECT_GE(first, inputs + Wide::kInput) << "a verified step holds the last output too, to compare with";
  EXPECT_LT(first, inputs + Wide::kInput + 256);
  const int64_t later = wide.kept(recomputed(&wide.sites));
  EXPECT_GE(later, inputs);
  EXPECT_LT(later, inputs + 256);
  EXPECT_GT(plain, 6 * later) << "the blocks keep four wide tensors each";
}

/// test_checkpointing_without_reentrant_early_free: each block's input goes as soon as its backward is done.
TEST(EarlyFree, BlockByBlock) {
  Wide wide;
  for (int step = 0; step < 3; ++step) {
    wide.x.mutable_grad() = at::Tensor();
    const at::Tensor graph = wide.loss(recomputed(&wide.sites));
    std::vector<int64_t> live;
    wide.enter = [&] { live.push_back(planner::bytes_in_use(at::kCPU).current); };
    graph.backward();
    wide.enter = [] {};
    ASSERT_EQ(live.size(), static_cast<std::size_t>(Wide::kBlocks));
    // Between two recomputes one kept input goes; the gradient that arrives takes the place of the one before.
    // (The first one, of a sum, is a number that takes none.)
    for (std::size_t i = 2; i < live.size(); ++i)
      EXPECT_NEAR(static_cast<double>(live[i - 1] - live[i]), Wide::kInput, 64) << "step " << step << " block " << i;
  }
}

/// The peak of a step is the kept inputs and one block's own tensors.
TEST(Checkpointing, PeakIsInputsAndOneBlock) {
  Wide wide;
  const auto peak = [&](const BlockRun& how) {
    wide.x.mutable_grad() = at::Tensor();
    const planner::PeakMark mark(at::kCPU);
    wide.loss(how).backward();
    wide.x.mutable_grad() = at::Tensor();
    EXPECT_EQ(mark.held(), 0) << "a step leaves nothing";
    return mark.above();
  };
  const int64_t plain = peak({});
  peak(recomputed(&wide.sites));
  const int64_t later = peak(recomputed(&wide.sites));
  // 8 inputs; one block: 2 x 3 wide tensors and gradients of the same shapes.
  EXPECT_LT(later, (Wide::kBlocks + 8 * 4) * Wide::kInput);
  EXPECT_LT(later, plain / 3);
}

/// Plainly run blocks cost what autograd keeps: the node for each input holds no copy.
TEST(MemorySavings, OwnNodesCostNothing) {
  Wide wide;
  const int64_t through_engine = wide.kept({});
  const planner::PeakMark mark(at::kCPU);
  Flow flow{{wide.x}, {}, {}};
  for (const auto& block : wide.blocks) flow.carried = block->forward(flow);
  const at::Tensor loss = flow.carried[0].sum();
  flow.carried.clear();
  EXPECT_EQ(through_engine, mark.held());
}

}  // namespace
}  // namespace trainer::test
