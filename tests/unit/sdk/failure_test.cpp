/// @file A throw anywhere in a step leaves the process able to run the step again with the same bits; weights are
/// brought and taken away in pairs; kept inputs may live elsewhere.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>
#include <stdexcept>

#include "toy.hpp"

namespace trainer::test {
namespace {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Counts operations of a toy's blocks and fails at one of them.
struct Fault {
  int64_t at = std::numeric_limits<int64_t>::max(), count = 0;
  void operator()() {
    if (++count == at) throw Failure("operation " + std::to_string(at));
  }
};

/// Keeps clones, and spoils what it handed out before: as a ring of buffers does.
class PoisoningStore final : public ActivationStore {
 public:
  std::shared_ptr<void> put(const at::Tensor& tensor, const Site& site) override {
    EXPECT_NE(site.block, nullptr);
    auto kept = std::make_shared<at::Tensor>(tensor.detach().clone());
    alive_.push_back(kept);
    return kept;
  }
  at::Tensor take(const std::shared_ptr<void>& handle, const Site& site) override {
    if (site.index != last_site_) {
      poison();
      last_site_ = site.index;
    }
    handed_out_.push_back(std::static_pointer_cast<at::Tensor>(handle)->clone());
    return handed_out_.back();
  }
  void poison() {
    const at::NoGradGuard no_grad;
    for (at::Tensor& tensor : handed_out_)
      if (tensor.is_floating_point()) tensor.fill_(std::numeric_limits<double>::quiet_NaN());
    handed_out_.clear();
    last_site_ = -1;
  }
  [[nodiscard]] std::size_t alive() const {
    std::size_t count = 0;
    for (const auto& one : alive_) count += one.expired() ? 0 : 1;
    return count;
  }

 private:
  std::vector<std::weak_ptr<void>> alive_;
  std::vector<at::Tensor> handed_out_;
  int64_t last_site_ = -1;
};

/// Checks that calls come in pairs and that at most one block's weights are needed at a time; may throw in `before`.
class CountingResidency final : public WeightResidency {
 public:
  void plan(std::span<Block* const>) override {}
  void before(const Site& site, Pass pass) override {
    if (static_cast<int64_t>(log.size()) == fail_at) throw Failure("no room for the weights");
    EXPECT_TRUE(open.empty()) << "another block is still open";
    open.push_back(site.index);
    log.push_back((pass == Pass::forward ? "f" : "b") + std::to_string(site.index));
  }
  void after(const Site& site, Pass) noexcept override {
    EXPECT_EQ(open, std::vector<int64_t>{site.index});
    open.clear();
  }
  std::vector<std::string> log;
  std::vector<int64_t> open;
  int64_t fail_at = -1;
};

/// Everything that a step may leave behind in the process.
void expect_clean(Toy& toy) {
  EXPECT_TRUE(at::GradMode::is_enabled());
  for (Parameter* parameter : toy.trained()) EXPECT_TRUE(parameter->get().is_same(parameter->value()));
}

/// test_checkpoint_valid_reset_on_error, composable's clears_state_on_error_in_forward: fail at the N-th operation of a
/// step for every N: in the verifying runs, the forward, the recompute and the backward of its graph.
TEST(FailAtOperation, EveryOne) {
  for (const bool with_store : {false, true}) {
    Toy toy({.blocks = 2});
    const Outcome plain = toy.step({});
    int64_t operations = 0;
    for (const bool first_step : {true, false}) {
      int64_t failed = 0;
      for (int64_t n = 1;; ++n) {
        RecomputeState sites;
        PoisoningStore store;
        CountingResidency residency;
        BlockRun how = recomputed(&sites);
        if (with_store) how.store = &store;
        how.residency = &residency;
        if (!first_step) {
          EXPECT_TRUE(toy.step(how) == plain);
        }
        Fault fault{n, 0};
        toy.tick = std::ref(fault);
        bool thrown = false;
        try {
          toy.step(how);
        } catch (const Failure& failure) {
          thrown = true;
          EXPECT_EQ(failure.what(), "operation " + std::to_string(n));
        }
        toy.tick = [] {};
        EXPECT_TRUE(residency.open.empty());
        expect_clean(toy);
        EXPECT_EQ(store.alive(), 0U) << "what was kept goes with the graph";
        EXPECT_TRUE(toy.step(how) == plain) << "after a failure at operation " << n;
        if (!thrown) break;
        failed = n;
      }
      operations += failed;
      // Per block: 5 operations a forward and 1 more in backward. Runs: before, forward, after, recompute; later 2.
      EXPECT_EQ(failed, 2 * (5 * (first_step ? 4 : 2) + 1));
    }
    EXPECT_EQ(operations, 42 + 22);
  }
}

/// test_custom_function_propagates_errors, checkpoint_context_fn_exits_on_forward_exception: the exception that comes
/// out is the block's own, with its type.
TEST(ContextFn, CannotSuppressForwardExceptionOrItsType) {
  Toy toy;
  RecomputeState sites;
  const Outcome plain = toy.step({});
  toy.step(recomputed(&sites));
  const at::Tensor loss = toy.loss(recomputed(&sites));
  toy.tick = [] { throw Error(ExitCode::out_of_memory, "no memory", "OOM"); };
  try {
    loss.backward();
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::out_of_memory);
    EXPECT_EQ(error.code(), "OOM");
    EXPECT_STREQ(error.what(), "no memory");
  }
  toy.tick = [] {};
  EXPECT_TRUE(toy.step(recomputed(&sites)) == plain);
}

/// test_saved_tensor_hooks_custom_error_propagation: what a store throws comes out with its type, and the next step is
/// the plain one.
TEST(SavedTensorHooks, CustomErrorPropagationOfAStore) {
  struct Refusing final : ActivationStore {
    std::shared_ptr<void> put(const at::Tensor& tensor, const Site&) override {
      if (puts-- == 0) throw Failure("no room");
      return std::make_shared<at::Tensor>(tensor.detach().clone());
    }
    at::Tensor take(const std::shared_ptr<void>& handle, const Site&) override {
      if (takes-- == 0) throw Failure("lost");
      return *std::static_pointer_cast<at::Tensor>(handle);
    }
    int puts = -1, takes = -1;
  } store;
  Toy toy;
  const Outcome plain = toy.step({});
  RecomputeState sites;
  BlockRun how = recomputed(&sites);
  how.store = &store;
  for (const bool put : {true, false})
    for (int n = 0; n < 6; ++n) {
      (put ? store.puts : store.takes) = n;
      EXPECT_THROW(toy.step(how), Failure) << put << n;
      store.puts = store.takes = -1;
      expect_clean(toy);
      EXPECT_TRUE(toy.step(how) == plain) << put << n;
    }
}

TEST(SaveOnCpuAndCheckpoint, OfAStoreIsBitEqual) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Toy toy({.dtype = dtype, .blocks = 5});
    const Outcome plain = toy.step({});
    PoisoningStore store;
    RecomputeState sites;
    BlockRun how = recomputed(&sites);
    how.store = &store;
    for (int step = 0; step < 3; ++step) {
      EXPECT_TRUE(toy.step(how) == plain) << dtype << " step " << step;
      EXPECT_EQ(store.alive(), 0U);
      store.poison();
    }
  }
}

/// The flow goes to the store, whole: masks and frozen tensors too. Handles go block by block, not with the loss.
TEST(GraphSaveOnCpu, AStoreIsEmptiedBlockByBlock) {
  Toy toy({.blocks = 4});
  PoisoningStore store;
  BlockRun how = recomputed();
  how.store = &store;
  const at::Tensor loss = toy.loss(how);
  EXPECT_EQ(store.alive(), 8U) << "one carried and one shared tensor a block";
  std::vector<std::size_t> left;
  toy.read_modulation = [&](const Flow& flow, int64_t) {
    left.push_back(store.alive());
    return flow.shared[0];
  };
  loss.backward();
  EXPECT_EQ(left, (std::vector<std::size_t>{8, 6, 4, 2}));
  EXPECT_EQ(store.alive(), 0U) << "while the loss still holds the graph";
}

TEST(ActivationStore, RetainedGraphTakesAgain) {
  Toy toy({.blocks = 3});
  PoisoningStore store;
  BlockRun how = recomputed();
  how.store = &store;
  const at::Tensor loss = toy.loss(how);
  std::vector<at::Tensor> leaves;
  for (Parameter* parameter : toy.trained()) leaves.push_back(parameter->value());
  const auto first = torch::autograd::grad({loss}, leaves, {}, /*retain_graph=*/true);
  EXPECT_EQ(store.alive(), 6U);
  store.poison();
  EXPECT_TRUE(same_bits(torch::autograd::grad({loss}, leaves), first));
  EXPECT_EQ(store.alive(), 0U);
  EXPECT_THROW(torch::autograd::grad({loss}, leaves), c10::Error);
}

TEST(WithContextFn, ResidencyCallsArePairedAndInOrder) {
  Toy toy({.blocks = 3});
  const Outcome plain = toy.step({});
  CountingResidency residency;
  RecomputeState sites;
  BlockRun how = recomputed(&sites);
  how.residency = &residency;
  for (int step = 0; step < 2; ++step) {
    residency.log.clear();
    EXPECT_TRUE(toy.step(how) == plain);
    EXPECT_EQ(residency.log, (std::vector<std::string>{"f0", "f1", "f2", "b2", "b1", "b0"}));
  }
  residency.log.clear();
  const at::NoGradGuard no_grad;
  toy.loss(how);
  EXPECT_EQ(residency.log, (std::vector<std::string>{"f0", "f1", "f2"}));
}

TEST(ContextFn, ExitsOnForwardExceptionInAnyResidencyCall) {
  Toy toy({.blocks = 3});
  const Outcome plain = toy.step({});
  for (int64_t call = 0; call < 6; ++call) {
    CountingResidency residency;
    residency.fail_at = call;
    RecomputeState sites;
    BlockRun how = recomputed(&sites);
    how.residency = &residency;
    EXPECT_THROW(toy.step(how), Failure);
    EXPECT_TRUE(residency.open.empty());
    expect_clean(toy);
    residency.fail_at = -1;
    EXPECT_TRUE(toy.step(how) == plain) << "after a failure in call " << call;
  }
}

/// The backward of a block that autograd runs by itself is bracketed too, also when it is run twice.
TEST(WeightResidency, NeedsNoRecomputation) {
  Toy toy({.blocks = 3});
  const Outcome plain = toy.step({});
  CountingResidency residency;
  BlockRun how;
  how.residency = &residency;
  EXPECT_TRUE(toy.step(how) == plain);
  EXPECT_EQ(residency.log, (std::vector<std::string>{"f0", "f1", "f2", "b2", "b1", "b0"}));
  residency.log.clear();
  const at::Tensor loss = toy.loss(how);
  std::vector<at::Tensor> leaves;
  for (Parameter* parameter : toy.trained()) leaves.push_back(parameter->value());
  const auto first = torch::autograd::grad({loss}, leaves, {}, /*retain_graph=*/true);
  EXPECT_TRUE(same_bits(torch::autograd::grad({loss}, leaves), first));
  EXPECT_EQ(residency.log, (std::vector<std::string>{"f0", "f1", "f2", "b2", "b1", "b0", "b2", "b1", "b0"}));
  EXPECT_TRUE(residency.open.empty());
}

/// A backward that dies between two of its nodes ends the stay when its graph is freed, at the N-th operation for every
/// N.
TEST(WeightResidency, IsPairedWhenABackwardDies) {
  int64_t failed = 0;
  for (int64_t n = 1;; ++n) {
    Toy toy({.blocks = 2});
    const Outcome plain = toy.step({});
    CountingResidency residency;
    BlockRun how;
    how.residency = &residency;
    Fault fault{n, 0};
    toy.tick = std::ref(fault);
    bool thrown = false;
    try {
      toy.step(how);
    } catch (const Failure&) {
      thrown = true;
    }
    EXPECT_TRUE(residency.open.empty()) << n;
    expect_clean(toy);
    if (!thrown) break;
    ++failed;
    toy.tick = [] {};
    EXPECT_TRUE(toy.step(how) == plain) << n;
  }
  EXPECT_GE(failed, 8) << "forward and backward of the frozen layers";
}

/// A block that takes no part is neither run nor moved, and the chain goes on with what it was given.
TEST(TakesPart, ABlockMayStandAside) {
  Toy toy({.blocks = 1});
  class Aside final : public Block {
   public:
    Aside() : Block("aside", "aside") {}
    std::vector<at::Tensor> forward(const Flow&) override { throw Failure("it was run"); }
    [[nodiscard]] bool takes_part(const Flow& flow) const override { return flow.sizes.at(0) == 1; }
  } block;
  CountingResidency residency;
  RecomputeState sites;
  BlockRun how = recomputed(&sites);
  how.residency = &residency;
  const Flow flow{{at::ones({2, 3}).requires_grad_()}, {}, {0}};
  const std::vector<at::Tensor> carried = run_block(block, flow, how);
  ASSERT_EQ(carried.size(), 1U);
  EXPECT_TRUE(carried[0].is_same(flow.carried[0]));
  EXPECT_TRUE(residency.log.empty());
  EXPECT_THROW(run_block(block, {flow.carried, {}, {1}}, how), Failure);
}

}  // namespace
}  // namespace trainer::test
