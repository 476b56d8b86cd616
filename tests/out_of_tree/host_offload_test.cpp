/// @file The stranger's activation offload: what it keeps are copies, so the originals are free after the forward, and
/// what they hold later does not matter.
#include "strangers.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <torch/csrc/autograd/autograd.h>
#include <planner/byte_counter.hpp>

#include <limits>

namespace trainer::strangers {
namespace {

at::Tensor put_and_take(ActivationStore& store, const at::Tensor& tensor) {
  return store.take(store.put(tensor, {}), {});
}

/// Recomputed blocks whose kept tensors go to the strategy's store.
BlockRun storing(MemoryStrategy& offload, RecomputeState& sites) {
  BlockRun how;
  how.options.recompute = true;
  how.state = &sites;
  how.store = offload.activation_store();
  return how;
}

TEST(HostOffload, GivesBackTheSameBits) {
  const auto offload = strategy("host_offload");
  ActivationStore& store = *offload->activation_store();
  const at::Tensor base = at::rand({6, 8});
  const std::vector<at::Tensor> tensors{base,
                                        base.t(),
                                        base.slice(0, 0, 6, 2),
                                        base.narrow(1, 2, 3),
                                        base[0].expand({4, 8}),
                                        base.to(at::kBFloat16),
                                        base.gt(0.5),
                                        (base * 100).to(at::kLong),
                                        at::empty({0, 3}),
                                        base.sum(),
                                        base / 0.0};
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor back = put_and_take(store, tensor);
    EXPECT_TRUE(test::same_bits(back, tensor)) << tensor;
    EXPECT_EQ(back.device(), tensor.device());
    EXPECT_EQ(back.strides(), tensor.strides());
    if (tensor.numel() > 0) {
      EXPECT_NE(back.const_data_ptr(), tensor.const_data_ptr()) << "a copy, not the tensor";
    }
  }
}

TEST(HostOffload, MayBeTakenTwiceAndSpoiled) {
  const auto offload = strategy("host_offload");
  ActivationStore& store = *offload->activation_store();
  at::Tensor tensor = at::rand({4, 5});
  const at::Tensor original = tensor.clone();
  const auto handle = store.put(tensor, {});
  tensor.fill_(std::numeric_limits<float>::quiet_NaN());
  at::Tensor first = store.take(handle, {});
  EXPECT_TRUE(test::same_bits(first, original));
  first.zero_();
  EXPECT_TRUE(test::same_bits(store.take(handle, {}), original));
}

/// A shared tensor comes once a block: one copy serves all, unless it was changed, or is another at the same address.
TEST(HostOffload, CopiesASharedTensorOnce) {
  const auto offload = strategy("host_offload");
  ActivationStore& store = *offload->activation_store();
  at::Tensor shared = at::rand({64});
  const auto first = store.put(shared, {}), second = store.put(shared, {});
  EXPECT_EQ(first, second);
  const at::Tensor before = shared.clone();
  shared.add_(1);
  const auto changed = store.put(shared, {});
  EXPECT_NE(changed, first);
  EXPECT_TRUE(test::same_bits(store.take(first, {}), before));
  EXPECT_TRUE(test::same_bits(store.take(changed, {}), shared));
  for (int i = 0; i < 1000; ++i) {
    const at::Tensor other = at::rand({64});  // sooner or later where an earlier one was
    ASSERT_TRUE(test::same_bits(put_and_take(store, other), other)) << i;
  }
}

/// The blocks' inputs are copies: after the forward the originals are gone, after the backward the copies are.
TEST(HostOffload, ReleasesTheOriginalsAndThenTheCopies) {
  ToyChain chain(4);
  const std::vector<at::Tensor> plain = chain.step({});
  const auto offload = strategy("host_offload");
  RecomputeState sites;
  const BlockRun how = storing(*offload, sites);
  EXPECT_TRUE(same(chain.step(how), plain));

  planner::install_byte_counter();
  const planner::PeakMark mark(at::kCPU);
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> originals;
  at::Tensor loss;
  {
    Flow flow = chain.start();
    originals.emplace_back(flow.carried[0].getIntrusivePtr());
    BlockRun one = how;
    const auto blocks = chain.model().blocks();
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      one.site = {blocks[i], static_cast<int64_t>(i), static_cast<int64_t>(blocks.size()), 0};
      flow.carried = run_block(*blocks[i], flow, one);
      originals.emplace_back(flow.carried[0].getIntrusivePtr());
    }
    loss = flow.carried[0].sum();
  }
  // The first input is the leaf that the gradient goes to; of the others only copies are left.
  for (std::size_t i = 1; i < originals.size(); ++i) EXPECT_TRUE(originals[i].expired()) << i;
  const int64_t carried = 2 * 20 * 8 * 4, shared = 2 * 24 * 4;
  const int64_t kept = mark.held();
  // Leaves, four copied inputs, one copy of the shared tensor, the loss; rounding and autograd's own are small.
  EXPECT_GE(kept, 5 * carried + 2 * shared);
  EXPECT_LE(kept, 5 * carried + 2 * shared + carried / 2);
  loss.backward();
  loss.reset();
  EXPECT_EQ(mark.held(), 0) << "nothing is left in the store";
}

TEST(HostOffload, AGraphMayBeKeptAndRunTwice) {
  ToyChain chain(3);
  const auto offload = strategy("host_offload");
  RecomputeState sites;
  const BlockRun how = storing(*offload, sites);
  const Flow flow = chain.start();
  const at::Tensor loss = chain.run(flow, how).carried[0].pow(2).sum();
  const std::vector<at::Tensor> leaves{flow.carried[0], flow.shared[0]};
  const auto first = torch::autograd::grad({loss}, leaves, {}, /*retain_graph=*/true);
  EXPECT_TRUE(same(first, torch::autograd::grad({loss}, leaves)));
  EXPECT_TRUE(same(first, {chain.step({})[1], chain.step({})[2]}));
}

}  // namespace
}  // namespace trainer::strangers
