/// @file The stranger's block swap: same bits with two slots as with all weights at hand, whatever is recomputed,
/// packed or fails; weights without a slot are NaN, so nothing reads them.
#include "strangers.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isnan.h>

#include <set>
#include <stdexcept>

namespace trainer::strangers {
namespace {

/// Blocks whose weights are not NaN now.
std::set<int64_t> at_hand(ToyChain& chain) {
  std::set<int64_t> found;
  const auto blocks = chain.model().blocks();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const at::Tensor weight = blocks[i]->info().linears[0].state().frozen->dense(at::kFloat);
    if (!at::isnan(weight).any().item<bool>()) found.insert(static_cast<int64_t>(i));
  }
  return found;
}

struct Swapped {
  explicit Swapped(ToyChain& chain, int64_t slots = 2) : swap(strategy("block_swap", {{"slots", {slots}}})) {
    swap->weight_residency()->plan(chain.model().blocks());
  }
  [[nodiscard]] BlockRun how(RecomputeState* sites = nullptr) const {
    BlockRun run;
    run.options.recompute = sites != nullptr;
    run.state = sites;
    run.residency = swap->weight_residency();
    return run;
  }
  std::unique_ptr<MemoryStrategy> swap;
};

TEST(BlockSwap, EqualsThePlainRun) {
  for (const int64_t slots : {1, 2, 5, 9}) {
    ToyChain chain(5);
    const std::vector<at::Tensor> plain = chain.step({});
    const Swapped swapped(chain, slots);
    EXPECT_TRUE(at_hand(chain).empty());
    for (int step = 0; step < 2; ++step) {
      RecomputeState sites;
      EXPECT_TRUE(same(chain.step(swapped.how(&sites)), plain)) << slots << " slots, recomputed";
      EXPECT_TRUE(same(chain.step(swapped.how()), plain)) << slots << " slots, not recomputed";
    }
  }
}

/// Forward, then backward: the last blocks stay over the turn, and the first ones over the next step's beginning.
TEST(BlockSwap, KeepsTheLastBlocksOverTheTurn) {
  ToyChain chain(5);
  const Swapped swapped(chain);
  const Flow flow = chain.start();
  const Flow end = chain.run(flow, swapped.how());
  EXPECT_EQ(at_hand(chain), (std::set<int64_t>{3, 4}));
  end.carried[0].sum().backward();
  EXPECT_EQ(at_hand(chain), (std::set<int64_t>{0, 1}));
}

/// Without `before` the computation reads NaN: a run that forgot the residency cannot pass for a good one.
TEST(BlockSwap, WeightsElsewhereAreNotRead) {
  ToyChain chain(3);
  const Swapped swapped(chain);
  EXPECT_TRUE(at::isnan(chain.step({})[0]).all().item<bool>());
}

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Fails in the N-th product with a weight and counts them.
class Brittle final : public FrozenWeight {
 public:
  Brittle(std::shared_ptr<FrozenWeight> inner, int64_t& left) : inner_(std::move(inner)), left_(left) {}
  [[nodiscard]] at::Tensor matmul(const at::Tensor& x) const override { return tick(), inner_->matmul(x); }
  [[nodiscard]] at::Tensor grad_input(const at::Tensor& g) const override { return tick(), inner_->grad_input(g); }
  [[nodiscard]] at::Tensor dense(at::ScalarType dtype) const override { return inner_->dense(dtype); }
  [[nodiscard]] int64_t bytes() const override { return inner_->bytes(); }
  void to(at::Device device) override { inner_->to(device); }
  [[nodiscard]] std::vector<at::Tensor*> tensors() override { return inner_->tensors(); }

 private:
  void tick() const {
    if (--left_ == 0) throw Failure("no more");
  }
  std::shared_ptr<FrozenWeight> inner_;
  int64_t& left_;
};

/// A throw anywhere in forward or backward leaves the ring as usable as before.
TEST(BlockSwap, SurvivesAFailureAnywhere) {
  for (const bool recompute : {false, true}) {
    ToyChain chain(4);
    const std::vector<at::Tensor> plain = chain.step({});
    int64_t left = 0;
    for (Block* block : chain.model().blocks())
      for (const Linear& linear : block->info().linears)
        linear.state().frozen = std::make_shared<Brittle>(linear.state().frozen, left);
    const Swapped swapped(chain);
    RecomputeState sites;
    const BlockRun how = swapped.how(recompute ? &sites : nullptr);
    int64_t failures = 0;
    for (int64_t n = 1;; ++n) {
      left = n;
      bool failed = false;
      try {
        chain.step(how);
      } catch (const Failure&) {
        failed = true;
      }
      left = 0;
      EXPECT_TRUE(same(chain.step(how), plain)) << "after a failure at product " << n;
      EXPECT_LE(at_hand(chain).size(), 2U);
      if (!failed) break;
      ++failures;
    }
    // Two layers in each of four blocks; forward, backward, and the recompute in between.
    EXPECT_GE(failures, recompute ? 24 : 16);
  }
}

/// More blocks in use at once than there are slots is said, with the key; nothing is broken by it.
TEST(BlockSwap, SaysThatSlotsAreTooFew) {
  ToyChain chain(3);
  const Swapped swapped(chain, 1);
  WeightResidency& ring = *swapped.swap->weight_residency();
  const auto blocks = chain.model().blocks();
  const Site first{blocks[0], 0, 3, 0}, second{blocks[1], 1, 3, 0};
  ring.before(first, Pass::forward);
  try {
    ring.before(second, Pass::forward);
    FAIL() << "one slot, two blocks";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "memory.block_swap.slots: 1 are too few, more blocks are in use at once");
  }
  ring.after(first, Pass::forward);
  ring.before(second, Pass::forward);
  EXPECT_EQ(at_hand(chain), std::set<int64_t>{1});
  ring.after(second, Pass::forward);
}

/// Trained weights stay where they are.
TEST(BlockSwap, LeavesTrainedWeightsAlone) {
  ToyChain chain(2, /*trained=*/true);
  const Swapped swapped(chain);
  const at::Tensor weight = chain.model().blocks()[0]->info().linears[0].state().weight->value();
  chain.step(swapped.how());
  EXPECT_TRUE(weight.grad().defined());
  EXPECT_FALSE(at::isnan(weight).any().item<bool>());
}

}  // namespace
}  // namespace trainer::strangers
