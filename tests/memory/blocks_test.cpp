/// @file Costs of single blocks: they add up to the step, and a block that cannot run on shapes says why.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nonzero.h>
#include <c10/core/DeviceGuard.h>
#include <gtest/gtest.h>
#include <trainer/sdk/error.hpp>

#include <planner/block_cost.hpp>
#include <planner/byte_counter.hpp>

#include "cells.hpp"

namespace trainer::memory {
namespace {

std::vector<planning::BlockPlan> blocks_of(const Cell& cell, planning::StepBytes* step = nullptr) {
  std::vector<planning::BlockPlan> blocks;
  const Measured dry = measure_dry(miniatures().front(), cell, {}, &blocks);
  if (step != nullptr) *step = dry.step;
  return blocks;
}

double sum(const std::vector<planning::BlockPlan>& blocks, double planner::BlockCost::*flops) {
  double total = 0;
  for (const planning::BlockPlan& block : blocks) total += block.cost.*flops;
  return total;
}

TEST(Blocks, AddUpToTheStepButForItsEnds) {
  std::vector<int64_t> ends;  // what prologue, epilogue and loss keep, however the blocks are run
  for (const char* how : {"none", "full", "attention", "matmul"}) {
    planning::StepBytes step;
    int64_t kept = 0;
    for (const planning::BlockPlan& block : blocks_of({how}, &step)) kept += block.cost.kept;
    ends.push_back(step.kept - kept);
    EXPECT_GT(ends.back(), 0) << how;
  }
  // Recomputed blocks keep all that flows into them; plain ones need not, so that less of the prologue's is kept.
  EXPECT_EQ(ends[1], ends[2]);
  EXPECT_EQ(ends[1], ends[3]);
  EXPECT_LE(ends[0], ends[1]);
}

TEST(Blocks, RecomputeWhatTheyDoNotKeep) {
  const auto none = blocks_of({"none"}), full = blocks_of({"full"}), attention = blocks_of({"attention"}),
             matmul = blocks_of({"matmul"});
  const double forward = sum(none, &planner::BlockCost::forward_flops);
  EXPECT_GT(forward, 0);
  EXPECT_EQ(sum(none, &planner::BlockCost::recomputed_flops), 0);
  EXPECT_EQ(sum(full, &planner::BlockCost::recomputed_flops), forward);
  EXPECT_EQ(sum(full, &planner::BlockCost::backward_flops), sum(none, &planner::BlockCost::backward_flops));
  EXPECT_GT(sum(attention, &planner::BlockCost::recomputed_flops), 0);
  EXPECT_LT(sum(attention, &planner::BlockCost::recomputed_flops), forward);
  EXPECT_LT(sum(matmul, &planner::BlockCost::recomputed_flops), sum(attention, &planner::BlockCost::recomputed_flops));
  EXPECT_FALSE(attention.front().cost.kept_ops.empty());
}

/// Does what no shape tells.
class Strange final : public Block {
 public:
  explicit Strange(bool reads) : Block("strange.0", "strange"), reads_(reads) {}
  std::vector<at::Tensor> forward(const Flow& flow) override {
    if (reads_) static_cast<void>(flow.carried[0].sum().item<double>());
    static_cast<void>(at::nonzero(flow.carried[0]));
    return {flow.carried[0] * 2};
  }

 private:
  bool reads_;
};

TEST(Blocks, SayWhyTheyCannotRunOnShapes) {
  Flow flow;
  flow.carried = {at::empty({4, 8}, at::TensorOptions().device(at::kMeta)).requires_grad_()};
  for (const bool reads : {false, true}) {
    Strange block(reads);
    try {
      static_cast<void>(planner::measure(block, flow, {}));
      FAIL() << "measured";
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("strange.0"), std::string::npos) << text;
      EXPECT_NE(text.find(reads ? "reads a value" : "aten::nonzero"), std::string::npos) << text;
    }
  }
}

TEST(Counter, CountsTensorsExactlyAndNestsMarks) {
  planner::install_byte_counter();
  for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kMeta)}) {
    const auto make = [&](int64_t bytes) { return at::empty({bytes}, at::TensorOptions(at::kByte).device(device)); };
    const planner::PeakMark outer(device);
    at::Tensor a = make(1000), view = a.narrow(0, 0, 10);
    {
      const planner::PeakMark inner(device);
      EXPECT_EQ(inner.begin() - outer.begin(), 1000);
      static_cast<void>(make(500));
      EXPECT_EQ(inner.above(), 500);
      EXPECT_EQ(inner.held(), 0);
    }
    a = at::Tensor();
    EXPECT_EQ(outer.held(), 1000) << "the view holds the memory";
    view = at::Tensor();
    EXPECT_EQ(outer.held(), 0);
    EXPECT_EQ(outer.above(), 1500);
  }
}

TEST(Counter, TellsDryDevicesApart) {
  planner::install_byte_counter();
  const planner::PeakMark first(at::kMeta), second(at::Device(at::kMeta, 3));
  const auto make = [] { return at::empty({64}, at::TensorOptions(at::kByte).device(at::kMeta)); };
  at::Tensor a = make(), b, c;
  {
    const c10::DeviceGuard on(at::Device(at::kMeta, 3));
    b = make();
    const planner::Uncounted nowhere;
    c = make();
  }
  EXPECT_EQ(first.held(), 64);
  EXPECT_EQ(second.held(), 64);
  a = b = c = at::Tensor();
  EXPECT_EQ(first.held() + second.held(), 0);
}

}  // namespace
}  // namespace trainer::memory
