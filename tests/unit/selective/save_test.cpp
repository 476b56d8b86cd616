/// @file Selective recompute gives the gradients of a plain run, and runs exactly the operations it says it runs.
#include <ATen/TensorOperators.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/silu.h>

#include "chain.hpp"

namespace trainer::test {
namespace {

using selective::SaveList;
using Strings = std::vector<std::string>;

struct Case {
  const char* name;
  Strings save;
  Strings kept;    ///< expected, of 9 heavy calls
  int64_t elided;  ///< what recomputes fewer with elision; a value read by kept calls alone is dead as well
  int64_t elided_trained_modulation;
};
const Case kCases[] = {
    {"nothing", {}, {}, 2, 0},
    {"attention", {"attention"}, {std::string(Chain::kAttention) + "#0"}, 2, 0},
    {"matmul",
     {"matmul"},
     {"frozen_linear#0", "mm#0", "addmm#0", "frozen_linear#1", "frozen_linear#2", "frozen_linear#3", "mm#1", "addmm#1"},
     0,
     0},
    {"every_second", {"every_second_matmul"}, {"mm#0", "frozen_linear#1", "frozen_linear#3", "addmm#1"}, 0, 0},
    {"operators", {"mm", "addmm"}, {"mm#0", "addmm#0", "mm#1", "addmm#1"}, 2, 2},
    {"one_operator",
     {"frozen_linear"},
     {"frozen_linear#0", "frozen_linear#1", "frozen_linear#2", "frozen_linear#3"},
     1,
     0},
    {"calls", {"toy:frozen_linear#2", "toy:mm#1"}, {"frozen_linear#2", "mm#1"}, 2, 0},
    {"everything",
     {"attention", "matmul"},
     {"frozen_linear#0", "mm#0", "addmm#0", std::string(Chain::kAttention) + "#0", "frozen_linear#1", "frozen_linear#2",
      "frozen_linear#3", "mm#1", "addmm#1"},
     0,
     0},
};

class Save : public testing::TestWithParam<std::tuple<Case, at::ScalarType, bool>> {};

TEST_P(Save, GradientsArePlainAndCountsAreExact) {
  const auto& [param, dtype, trained_modulation] = GetParam();
  Chain chain({.dtype = dtype, .trained_modulation = trained_modulation});
  const std::vector<at::Tensor> plain = chain.step({});
  for (const bool elide : {false, true}) {
    SaveList save(param.save);
    RecomputeState sites;
    BlockRun how = keeping(save, &sites);
    how.options.elide = elide;
    for (int step = 0; step < 2; ++step) EXPECT_TRUE(same_bits(plain, chain.step(how))) << elide << step;
    const RecomputeReport& report = sites.reports.at("toy");
    const auto kept = static_cast<int64_t>(param.kept.size());
    const int64_t elided = !elide ? 0 : trained_modulation ? param.elided_trained_modulation : param.elided;
    EXPECT_EQ(report.forward_calls, 9);
    EXPECT_EQ(report.kept, param.kept);
    EXPECT_EQ(report.kept_calls, kept);
    EXPECT_EQ(report.recomputed_calls, 9 - kept - elided);
    EXPECT_EQ(report.elided_calls, elided);
    EXPECT_EQ(static_cast<int64_t>(report.dead.size()), report.elided_calls);
    save.require_all_matched();
  }
}

INSTANTIATE_TEST_SUITE_P(All, Save,
                         testing::Combine(testing::ValuesIn(kCases), testing::Values(at::kFloat, at::kBFloat16),
                                          testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) +
                                  (std::get<1>(info.param) == at::kFloat ? "_fp32" : "_bf16") +
                                  (std::get<2>(info.param) ? "_trained_modulation" : "");
                         });

TEST(SaveReport, BytesAndFlopsAreThoseOfTheKeptCalls) {
  Chain chain;
  SaveList save({"attention"});
  RecomputeState sites;
  chain.step(keeping(save, &sites));
  const RecomputeReport& report = sites.reports.at("toy");
  EXPECT_EQ(report.kept_bytes, 12 * 32 * 4 + 2 * 12 * 4);  // output and log-sum-exp
  const double attention = 4.0 * 12 * 12 * 32;
  const double linears = 2.0 * 12 * (32 * 96 + 32 * 32 + 32 * 64 + 64 * 32);
  const double lora = 2.0 * 12 * (32 * 2 + 2 * 96 + 64 * 2 + 2 * 32);
  EXPECT_EQ(report.forward_flops, attention + linears + lora);
  EXPECT_EQ(report.recomputed_flops, linears + lora);
  EXPECT_EQ(report.elided_flops, 0);
}

TEST(SetEarlyStop, ElidesTheLastLinearBehindAFrozenGate) {
  Chain chain;
  RecomputeState sites;
  chain.step(eliding(sites));
  const RecomputeReport& report = sites.reports.at("toy");
  EXPECT_EQ(report.dead, (Strings{"frozen_linear#3", "addmm#1"}));
  EXPECT_EQ(report.elided_flops, 2.0 * 12 * (64 * 32 + 2 * 32));
  EXPECT_EQ(report.forward_flops, report.recomputed_flops + report.elided_flops);
}

/// test_function_with_more_than_one_output: the log-sum-exp, which only the backward reads, is kept with the output.
TEST(FunctionWithMoreThanOneOutput, AttentionIsKeptWithItsLogSumExp) {
  Chain chain;
  SaveList save({"attention"});
  RecomputeState sites;
  const std::vector<at::Tensor> plain = chain.step({});
  for (int step = 0; step < 2; ++step) EXPECT_TRUE(same_bits(chain.step(keeping(save, &sites)), plain));
  const RecomputeReport& report = sites.reports.at("toy");
  EXPECT_EQ(report.kept_bytes, 12 * 32 * 4 + 2 * 12 * 4) << "rows x width, and heads x rows";
  EXPECT_EQ(report.recomputed_calls, 8) << "of nine";
}

TEST(CanOnlyTriggerRecompute, OnceUnlessTheGraphIsRetained) {
  Chain chain;
  const std::vector<at::Tensor> plain = chain.step({});
  for (const bool elide : {false, true}) {
    SaveList save({"attention", "every_second_matmul"});
    RecomputeState sites;
    BlockRun how = keeping(save, &sites);
    how.options.elide = elide;
    const at::Tensor loss = chain.loss(how);
    for (const bool retain : {true, true, false}) {
      loss.backward({}, retain);
      std::vector<at::Tensor> got = chain.take_grads();
      got.push_back(loss.detach());
      EXPECT_TRUE(same_bits(plain, got)) << elide << retain;
      EXPECT_EQ(sites.reports.at("toy").recomputed_calls, 4);
    }
  }
}

TEST(Save, UncheckedLastBlocksAndRecomputedFirstOnesMix) {
  struct FirstHalf final : RecomputePolicy {
    CheckpointOptions choose(const Site& site) override {
      if (site.index >= 2) return {};
      return {.recompute = true, .save = &save, .elide = true};
    }
    SaveList save{{"attention"}};
  } policy;
  Chain chain;
  RecomputeState sites;
  EXPECT_TRUE(same_bits(chain.step({}), chain.step(recomputed(&sites), &policy)));
}

/// Blocks of one type that are run differently have a report each, whichever ran last.
TEST(SaveReport, BlocksOfATypeThatAreRunDifferentlyAreToldApart) {
  struct Alternating final : RecomputePolicy {
    SaveList even{{"mm"}}, odd{{"addmm", "attention"}};
    CheckpointOptions choose(const Site& site) override {
      return {.recompute = true, .save = site.index % 2 == 0 ? &even : &odd, .elide = false};
    }
  };
  Chain chain;
  const std::vector<at::Tensor> plain = chain.step({});
  RecomputeState sites;
  Alternating policy;
  BlockRun how;
  how.options = {.recompute = true};
  how.state = &sites;
  for (int step = 0; step < 2; ++step) EXPECT_TRUE(same_bits(plain, chain.step(how, &policy)));
  ASSERT_EQ(sites.reports.size(), 2U);
  EXPECT_EQ(sites.reports.at("toy").kept, (std::vector<std::string>{"mm#0", "mm#1"}));
  EXPECT_EQ(sites.reports.at("toy").recomputed_calls, 7);
  const std::string other = std::string("toy keeping addmm#0, ") + Chain::kAttention + "#0, addmm#1";
  EXPECT_EQ(sites.reports.rbegin()->first, other);
  EXPECT_EQ(sites.reports.rbegin()->second.recomputed_calls, 6);
}

/// pytorch issue 178935: a selective checkpoint that goes on using a value of the forward where the recompute has
/// another.
TEST(Save, BackwardUsesTheValuesOfTheRecompute) {
  const ParameterPtr weight = make_trained("w", {8, 8}, 1);
  Single single({});
  single.block.add(weight);
  single.carried = {data(2, {6, 8})};
  double forward_factor = 1, recompute_factor = 1;
  single.block.body = [&](const Flow& flow) -> std::vector<at::Tensor> {
    const double factor = single.block.calls == 1 ? forward_factor : recompute_factor;
    return {at::silu(at::mm(flow.carried[0] * factor, weight->get()))};
  };
  const auto grads = [&](double forward, double recompute) {
    forward_factor = forward, recompute_factor = recompute;
    single.block.calls = 0;
    SaveList save({"mm"});
    return single.step(keeping(save));
  };
  // The product is kept; the factor on its left side is not heavy. d w = (x factor)^T d(product).
  const at::Tensor same = grads(1, 1)[0], changed = grads(1, 2)[0];
  EXPECT_TRUE(same_bits(same * 2, changed));
}

TEST(Save, AThrowInTheRecomputeLeavesTheStepRepeatable) {
  Chain chain({.blocks = 2});
  const std::vector<at::Tensor> plain = chain.step({});
  for (const bool elide : {false, true}) {
    SaveList save({"attention", "mm"});
    RecomputeState sites;
    BlockRun how = keeping(save, &sites);
    how.options.elide = elide;
    int thrown = 0;
    for (int n = 1;; ++n, ++thrown) {
      int left = n;
      chain.enter = [&] {
        if (--left == 0) throw Error(ExitCode::failed, "stop");
      };
      const std::string message = error_of([&] { chain.step(how); });
      chain.enter = [] {};
      EXPECT_TRUE(same_bits(plain, chain.step(how))) << n;
      if (message.empty()) break;
      EXPECT_EQ(message, "stop");
    }
    EXPECT_EQ(thrown, 4);  // after the first run: 2 blocks, forward and recompute
  }
}

TEST(Save, AThrowInAnyTrialLeavesTheStepRepeatable) {
  Chain chain({.blocks = 2});
  const std::vector<at::Tensor> plain = chain.step({});
  for (int n = 1; n < 60; n += 3) {
    SaveList save({"attention"});
    RecomputeState sites;
    BlockRun how = keeping(save, &sites);
    how.options.elide = true;
    int left = n;
    chain.enter = [&] {
      if (--left == 0) throw Error(ExitCode::failed, "stop");
    };
    const std::string message = error_of([&] { chain.step(how); });
    EXPECT_EQ(message, left > 0 ? "" : "stop") << n;
    chain.enter = [] {};
    EXPECT_TRUE(same_bits(plain, chain.step(how))) << n;
    EXPECT_EQ(sites.reports.at("toy").elided_calls, 2) << n;
  }
}

}  // namespace
}  // namespace trainer::test
