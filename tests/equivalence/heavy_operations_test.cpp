/// @file How many heavy operations a recompute of the miniature FLUX.2 runs, as the engine counts those that are
/// executed: full recomputes all but the elided, attention no attention, every_second_matmul half of the products.
#include <gtest/gtest.h>

#include <equivalence/subjects.hpp>
#include <support/plugins.hpp>

namespace trainer::equivalence {
namespace {

/// By block type, of three steps under one strategy.
std::map<std::string, RecomputeReport> reports(const prove::Subject& subject, const std::string& strategy,
                                               const Table& options) {
  prove::Setting setting{subject, at::kFloat, prove::Trained::default_targets, 1};
  setting.objective = objective_of(subject);
  std::vector<execution::MemoryStack::Named> named;
  named.push_back({strategy, testing::make_strategy(strategy, options)});
  auto found = prove::run_cell(loader(), setting, execution::MemoryStack(std::move(named))).recompute;
  EXPECT_EQ(found.size(), 2U) << "double and single blocks";
  return found;
}

Table saving(const std::string& what) { return {{"save", {Array{Value{what}}}}, {"elide", {false}}}; }

class HeavyOperations : public ::testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] static const prove::Subject& subject() {
    for (const prove::Subject& one : subjects())
      if (one.name == GetParam()) return one;
    throw std::runtime_error("no subject " + GetParam());
  }
};

TEST_P(HeavyOperations, FullRunsAllButTheDead) {
  for (const auto& [type, report] : reports(subject(), "full_checkpointing", {{"elide", {true}}})) {
    EXPECT_EQ(report.kept_calls, 0) << type;
    EXPECT_GT(report.elided_calls, 0) << type;
    EXPECT_EQ(report.recomputed_calls, report.forward_calls - report.elided_calls) << type;
    EXPECT_DOUBLE_EQ(report.recomputed_flops, report.forward_flops - report.elided_flops) << type;
  }
}

TEST_P(HeavyOperations, KeptAttentionIsNotRunAgain) {
  for (const auto& [type, report] : reports(subject(), "selective_checkpointing", saving("attention"))) {
    ASSERT_EQ(report.kept.size(), 1U) << type;
    EXPECT_EQ(report.kept[0].rfind("_scaled_dot_product", 0), 0U) << report.kept[0];
    EXPECT_EQ(report.recomputed_calls, report.forward_calls - 1) << type;
  }
}

TEST_P(HeavyOperations, EverySecondMatmulHalvesTheProducts) {
  for (const auto& [type, report] : reports(subject(), "selective_checkpointing", saving("every_second_matmul"))) {
    const int64_t products = report.forward_calls - 1;  // the other call is the attention
    EXPECT_EQ(report.kept_calls, products / 2) << type;
    EXPECT_EQ(report.recomputed_calls - 1, products - products / 2) << type;
  }
}

std::vector<std::string> flux2_subjects() {
  std::vector<std::string> names;
  for (const prove::Subject& one : subjects())
    if (one.component == "flux2") names.push_back(one.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Flux2, HeavyOperations, ::testing::ValuesIn(flux2_subjects()),
                         [](const auto& info) { return "subject" + std::to_string(info.index); });

}  // namespace
}  // namespace trainer::equivalence
