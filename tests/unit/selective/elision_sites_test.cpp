/// @file Which runs share an answer about dead values, and how an answer that has become wrong is found.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "chain.hpp"

namespace trainer::test {
namespace {

using Strings = std::vector<std::string>;

/// The sites of which something is known, blocks left out.
std::set<std::string> sites_of(const RecomputeState& state) {
  std::set<std::string> sites;
  for (const auto& [key, dead] : state.dead) sites.insert(key.substr(0, key.find('\n')));
  return sites;
}

/// x + gate * (silu(x W + up_bias) W2 + down_bias).
struct Gated {
  Gated(bool up_trained, bool down_trained, bool gate_trained, double up_value = 0) : single({}) {
    const auto add = [&](const std::string& name, bool trained, double shift) {
      return single.block.add(std::make_shared<Parameter>(name, (data(5, {1, 8}) + shift).requires_grad_(trained)));
    };
    const ParameterPtr up = add("up", up_trained, up_value), down = add("down", down_trained, 0),
                       gate = add("gate", gate_trained, 0);
    const at::Tensor w = data(6, {8, 8}), w2 = data(7, {8, 8});
    single.carried = {data(8, {4, 8})};
    single.block.body = [=](const Flow& flow) -> std::vector<at::Tensor> {
      const at::Tensor& x = flow.carried[0];
      const at::Tensor y = at::silu(at::mm(x, w) + up->get());
      return {x + gate->get() * (at::mm(y, w2) + down->get())};
    };
  }
  Single single;
};

/// All have one trained tensor [1, 8] and the same calls; what is dead differs. The order must not matter.
TEST(ElisionSites, TrainedParametersOfOneShapeAreToldApart) {
  Gated up(true, false, false), down(false, true, false), gate(false, false, true);
  const std::vector<std::pair<Gated*, Strings>> cases{{&up, {"mm#1"}}, {&down, {"mm#0", "mm#1"}}, {&gate, {}}};
  for (const auto& order : {std::vector<int>{0, 1, 2}, {2, 1, 0}, {1, 2, 0}, {1, 0, 2}}) {
    RecomputeState sites;
    for (const int i : order) {
      Single& single = cases[static_cast<std::size_t>(i)].first->single;
      EXPECT_TRUE(same_bits(single.step({}), single.step(eliding(sites)))) << i;
      EXPECT_EQ(sites.reports.at("toy").dead, cases[static_cast<std::size_t>(i)].second) << i;
    }
    EXPECT_EQ(sites.dead.size(), 3U);
  }
}

TEST(ElisionSites, BlocksOfOneKindShareAnAnswer) {
  Chain chain;
  RecomputeState sites;
  for (int step = 0; step < 3; ++step) chain.step(eliding(sites));
  EXPECT_EQ(sites_of(sites).size(), 2U);  // the first block, whose input has no gradient, and all others
  const ChainOptions longer{.rows = 14};
  Chain other(longer);
  EXPECT_TRUE(same_bits(other.step({}), other.step(eliding(sites))));
  EXPECT_EQ(sites_of(sites).size(), 4U);
}

/// Blocks h + relu(h W1) W2 with h = x + x A, of which A is trained: mm#1 is read by relu's backward, mm#2 by nobody.
/// With a W2 of zeros, as pruning leaves it, nothing shows the reader of mm#1: `pruned` is such a block.
class Pruned : public testing::TestWithParam<std::size_t> {
 protected:
  Pruned() {
    for (std::size_t i = 0; i < 3; ++i) {
      blocks_.push_back(std::make_unique<LambdaBlock>("b." + std::to_string(i)));
      LambdaBlock& block = *blocks_.back();
      const ParameterPtr a = block.add(make_trained("a", {8, 8}, 10 + i));
      w_.push_back(data(20 + i, {8, 8}));
      w2_.push_back(i == GetParam() ? at::zeros({8, 8}) : data(30 + i, {8, 8}));
      block.body = [=, this](const Flow& flow) -> std::vector<at::Tensor> {
        const at::Tensor h = flow.carried[0] + at::mm(flow.carried[0], a->get()) * 0.3;
        return {h + at::mm(at::relu(at::mm(h, w_[i])), w2_[i]) * 0.3};
      };
    }
  }
  std::vector<at::Tensor> step(const BlockRun& how) {
    std::vector<Block*> list;
    for (const auto& block : blocks_) list.push_back(block.get());
    run_chain(list, {{data(3, {6, 8}).requires_grad_()}, {}, {}}, how).carried[0].pow(2).sum().backward();
    std::vector<at::Tensor> grads;
    for (Block* block : list)
      for (Parameter* parameter : block->trainable())
        grads.push_back(std::exchange(parameter->value().mutable_grad(), at::Tensor()));
    return grads;
  }
  std::vector<std::unique_ptr<LambdaBlock>> blocks_;
  std::vector<at::Tensor> w_, w2_;
};

TEST_P(Pruned, ABlocksOwnNumbersHideNoReaderOfTheOthers) {
  RecomputeState sites;
  const std::vector<at::Tensor> plain = step({});
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(same_bits(plain, step(eliding(sites))));
  EXPECT_EQ(sites_of(sites).size(), 1U);
  for (const auto& [key, dead] : sites.dead) {
    if (key.ends_with("b." + std::to_string(GetParam()))) continue;
    EXPECT_EQ(dead, std::set<int64_t>{2}) << key;
  }
}

/// The forward, the runs around it that verify it, the whole recompute that is compared, and the recompute itself.
constexpr int kVerifyingRuns = 5;

TEST_P(Pruned, AFurtherBlockTakesAnAnswerAfterFourReruns) {
  if (GetParam() != 2) w2_[GetParam()] = data(40, {8, 8});
  RecomputeState sites;
  step(eliding(sites));
  EXPECT_GT(blocks_[2]->calls, kVerifyingRuns + 4) << "it searches";
  if (GetParam() != 2) {
    EXPECT_EQ(blocks_[0]->calls, kVerifyingRuns + 4);
  }
}

TEST_P(Pruned, EveryBlockIsTestedAgain) {
  RecomputeState sites;
  step(eliding(sites));
  sites.recheck_elision();
  step(eliding(sites));
  EXPECT_TRUE(sites.stale.empty());
  LambdaBlock& last = *blocks_[0];  // in the order of backwards
  last.body = [this](const Flow& flow) -> std::vector<at::Tensor> {
    const at::Tensor h = flow.carried[0] + at::mm(flow.carried[0], blocks_[0]->info().parameters[0]->get()) * 0.3;
    const at::Tensor o = at::mm(at::relu(at::mm(h, w_[0])), w2_[0]);
    return {h + o * o};
  };
  w2_[0] = data(30, {8, 8});
  sites.recheck_elision();
  const std::string message = error_of([&] { step(eliding(sites)); });
  EXPECT_EQ(message.rfind("block \"b.0\": the result of ", 0), 0U) << message;
}

INSTANTIATE_TEST_SUITE_P(Each, Pruned, testing::Values(0U, 1U, 2U));

TEST(ElisionSites, OutputGradientsAreAPartOfTheSite) {
  const ParameterPtr a = make_trained("a", {8, 8}, 1);
  const at::Tensor w = data(2, {8, 8});
  Single single([&](const Flow& flow) -> std::vector<at::Tensor> {
    const at::Tensor y = at::mm(flow.carried[0], a->get());
    return {y * 2, at::mm(at::silu(y), w)};  // mm#0 is read for the second output's gradient only, mm#1 by nobody
  });
  single.block.add(a);
  single.carried = {data(3, {4, 8})};
  RecomputeState sites;
  const std::vector<std::pair<std::vector<std::size_t>, Strings>> cases{
      {{0}, {"mm#0", "mm#1"}}, {{1}, {"mm#1"}}, {{0, 1}, {"mm#1"}}, {{0}, {"mm#0", "mm#1"}}};
  for (const auto& [used, dead] : cases) {
    EXPECT_TRUE(same_bits(single.step({}, used), single.step(eliding(sites), used)));
    EXPECT_EQ(sites.reports.at("toy").dead, dead);
  }
  EXPECT_EQ(sites.dead.size(), 3U);
}

TEST(Elision, OffElidesNothing) {
  Chain chain;
  RecomputeState sites;
  selective::SaveList save({"attention"});
  chain.step(keeping(save, &sites));
  EXPECT_EQ(sites.reports.at("toy").elided_calls, 0);
  EXPECT_EQ(sites.reports.at("toy").recomputed_calls, 8);
  EXPECT_TRUE(sites.dead.empty());
}

TEST(Elision, ATrainedGateNeedsTheValue) {
  Chain chain({.trained_modulation = true});
  RecomputeState sites;
  EXPECT_TRUE(same_bits(chain.step({}), chain.step(eliding(sites))));
  EXPECT_TRUE(sites.reports.at("toy").dead.empty());
  EXPECT_EQ(sites.reports.at("toy").recomputed_calls, 9);
}

/// The gradients of one block's gate, plain and without dead values, on two flows in turn: equal for both.
void expect_equal_in_turn(const Body& body, const ParameterPtr& gate, const Flow& first, const Flow& second) {
  LambdaBlock block("single.4", body);
  block.add(gate);
  RecomputeState sites;
  for (const Flow& flow : {first, second, first}) {
    std::vector<at::Tensor> grads;
    for (const BlockRun& how : {BlockRun{}, eliding(sites)}) {
      run_chain({&block}, flow, how).carried[0].sum().backward();
      grads.push_back(std::exchange(gate->value().mutable_grad(), at::Tensor()));
    }
    EXPECT_TRUE(same_bits({grads[0]}, {grads[1]}));
  }
}

TEST(ElisionSites, TheFlowsNumbersAreAPartOfTheSite) {
  const ParameterPtr gate = make_trained("gate", {1, 8}, 1);
  const at::Tensor w = data(2, {8, 8}), x = data(3, {6, 8});
  const Body body = [=](const Flow& flow) -> std::vector<at::Tensor> {
    const at::Tensor o = at::mm(flow.carried[0], w);
    return {flow.sizes[0] == 0 ? o * 0.5 + gate->get() : o * gate->get()};
  };
  expect_equal_in_turn(body, gate, {{x}, {}, {0}}, {{x}, {}, {1}});
}

/// A mask hides a value on one batch and not on the next: what no mask of the batch at hand shows must not count.
TEST(Elision, AMaskHidesNoReader) {
  const ParameterPtr gate = make_trained("gate", {1, 8}, 1);
  const at::Tensor w = data(2, {8, 8}), x = data(3, {6, 8});
  const auto mask = [](bool on, at::ScalarType dtype) { return at::full({6, 1}, on ? 1 : 0, dtype); };
  for (const at::ScalarType dtype : {at::kBool, at::kLong, at::kFloat}) {
    const Body body = [=](const Flow& flow) -> std::vector<at::Tensor> {
      return {at::where(flow.shared[0] == 1, at::mm(flow.carried[0], w), 0) * gate->get()};
    };
    expect_equal_in_turn(body, gate, {{x}, {mask(false, dtype)}, {}}, {{x}, {mask(true, dtype)}, {}});
  }
}

/// A block may choose its calls by a mask; then none of them is left out.
TEST(Elision, AMaskMayChooseTheCalls) {
  const ParameterPtr gate = make_trained("gate", {1, 8}, 1);
  const at::Tensor w = data(2, {8, 8}), x = data(3, {6, 8}), off = at::zeros({6, 1}), on = at::ones({6, 1});
  const Body body = [=](const Flow& flow) -> std::vector<at::Tensor> {
    const at::Tensor o = at::mm(flow.carried[0], w);
    const bool any = (flow.shared[0] == 1).any().item<bool>();
    return {(any ? at::mm(o, w) : o * 0.5) + gate->get()};
  };
  expect_equal_in_turn(body, gate, {{x}, {off}, {}}, {{x}, {on}, {}});
}

/// Dead values must not hide from the first run's comparison what the others are.
TEST(Elision, TheRecomputeIsComparedAllTheSame) {
  const ParameterPtr gate = make_trained("gate", {1, 8}, 1);
  const at::Tensor w = data(2, {8, 8});
  double factor = 1;
  Single single([&](const Flow& flow) -> std::vector<at::Tensor> {
    return {flow.carried[0] * factor + at::mm(flow.carried[0], w) * 0.5 + gate->get()};
  });
  single.block.add(gate);
  single.carried = {data(3, {6, 8})};
  RecomputeState sites;
  single.step(eliding(sites));
  EXPECT_EQ(sites.reports.at("toy").dead, Strings{"mm#0"});
  sites.always = true;
  const int forwards = 3;  // the run before, the forward, the run after
  single.block.body = [&, body = single.block.body](const Flow& flow) {
    factor = single.block.calls > forwards ? 2 : 1;
    return body(flow);
  };
  single.block.calls = 0;
  const std::string message = error_of([&] { single.step(eliding(sites)); });
  EXPECT_EQ(message.rfind("block \"b\" computed other values for output 0 in the recompute than in forward. ", 0), 0U)
      << message;
}

/// The value is read only when `flag` is set, which no site can see.
class BecomesAlive : public testing::Test {
 protected:
  BecomesAlive() {
    single.block.add(gate);
    single.carried = {data(3, {6, 8})};
    single.block.body = [this](const Flow& flow) -> std::vector<at::Tensor> {
      const at::Tensor o = at::mm(flow.carried[0], w);
      return {flag ? flow.carried[0] + o * gate->get() : flow.carried[0] + o * 0.5 + gate->get()};
    };
  }
  bool flag = false;
  at::Tensor w = data(2, {8, 8});
  ParameterPtr gate = make_trained("gate", {1, 8}, 1);
  Single single{{}, "single.4"};
};

TEST_F(BecomesAlive, IsFoundByTheRecheckEveryTime) {
  RecomputeState sites;
  EXPECT_TRUE(same_bits(single.step({}), single.step(eliding(sites))));
  EXPECT_EQ(sites.reports.at("toy").dead, Strings{"mm#0"});
  sites.recheck_elision();
  EXPECT_TRUE(same_bits(single.step({}), single.step(eliding(sites))));
  flag = true;
  sites.recheck_elision();
  // A run that goes on after the error must meet it again: never a wrong gradient.
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(error_of([&] { single.step(eliding(sites)); }),
              "block \"single.4\": the result of mm#0 is read now, but nothing read it when this was tested; gradients "
              "would be wrong. Set elide = false in the recipe and report the model.");
  BlockRun off = recomputed(&sites);
  EXPECT_TRUE(same_bits(single.step({}), single.step(off)));
}

/// The memory of a placeholder is often that of the value just freed, contents included: the recheck must not rely on
/// what happens to be in it.
TEST_F(BecomesAlive, IsFoundWhateverThePlaceholdersMemoryHolds) {
  for (int64_t rows : {1, 2, 8, 64, 512}) {
    RecomputeState sites;
    flag = false;
    single.carried = {data(3, {rows, 8})};
    single.step(eliding(sites));
    flag = true;
    sites.recheck_elision();
    EXPECT_NE(error_of([&] { single.step(eliding(sites)); }), "") << rows;
  }
}

/// Two values of which each is unread while the other is there: x*0 hides nothing, a maximum of both does.
TEST(Elision, NothingIsDeadThatOnlyAnotherValueHides) {
  const ParameterPtr a = make_trained("a", {8, 8}, 1);
  const at::Tensor w = data(2, {8, 8});
  Single single([&](const Flow& flow) -> std::vector<at::Tensor> {
    const at::Tensor x = at::mm(flow.carried[0], a->get());
    const at::Tensor first = at::mm(flow.carried[0], w), second = at::mm(flow.carried[0], w);
    // A gradient flows where either is a number.
    const at::Tensor open = ((first == first).logical_or(second == second)).to(at::kFloat);
    return {x * open};
  });
  single.block.add(a);
  single.carried = {data(3, {4, 8})};
  RecomputeState sites;
  for (int step = 0; step < 2; ++step) EXPECT_TRUE(same_bits(single.step({}), single.step(eliding(sites))));
  for (const std::string& dead : sites.reports.at("toy").dead) EXPECT_EQ(dead, "mm#0");
}

}  // namespace
}  // namespace trainer::test
