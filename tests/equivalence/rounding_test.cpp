/// @file The cells of strategies whose products round: each with every subset of the others. Recomputing and moving may
/// not change a bit of what the packing alone computes, and that stays within its declared tolerance of the weights of
/// the file. What is trained and in how many micro-batches is crossed less than in matrix_test.cpp. Quick: each model with
/// each such strategy in one dtype, in turns.
#include <gtest/gtest.h>
#include <support/device.hpp>
#include <support/whole.hpp>

#include <algorithm>
#include <utility>

#include "subjects.hpp"

namespace trainer::equivalence {
namespace {

using prove::Row;
using prove::Setting;
using prove::Trained;

/// Those that do not pack weights themselves.
std::vector<std::string> others() {
  std::vector<std::string> names = prove::memory_strategies(loader());
  const std::vector<std::string> packing = prove::packing(loader(), names);
  std::erase_if(names, [&](const std::string& name) {
    // Those of tests/out_of_tree know host memory only.
    if (!testing::test_device().is_cpu() && (name == "block_swap" || name == "host_offload")) return true;
    return std::find(packing.begin(), packing.end(), name) != packing.end();
  });
  return names;
}

class Rounding : public ::testing::TestWithParam<std::pair<Setting, std::string>> {};

TEST_P(Rounding, WithEverySubsetOfTheOthers) {
  const auto& [setting, name] = GetParam();
  std::vector<std::string> all = others();
  const std::size_t subsets = std::size_t{1} << all.size();
  all.push_back(name);
  const std::vector<Row> rows = prove::check_subsets(loader(), setting, all, name);
  EXPECT_EQ(rows.size(), subsets) << "no cell is left out";
  std::size_t equal = 0;
  for (const Row& row : rows) {
    EXPECT_EQ(row.verdict, expected(setting, row.subset)) << row.text();
    equal += row.verdict == Row::equal;
    if (row.subset == name) std::printf("%s\n", row.text().c_str());
  }
  EXPECT_GE(equal, 3U) << "alone, with full and with selective checkpointing";
}

TEST(RoundingAlone, TwoPackingsAreRefused) {
  const Setting setting{.subject = subject_named("conformance")};
  const std::vector<std::string> rounding = prove::rounding_strategies(loader());
  ASSERT_GE(rounding.size(), 2U);
  for (const std::string& name : rounding)
    EXPECT_EQ(prove::SubsetCheck(loader(), setting).check({"fp8_weight_only", name}).verdict, Row::refused) << name;
  EXPECT_EQ(prove::SubsetCheck(loader(), setting).check(rounding).verdict, Row::refused);
}

TEST(RoundingAlone, TrainedWeightsAreNeverPacked) {
  for (const std::string& name : prove::rounding_strategies(loader())) {
    const Setting setting{.subject = subject_named("conformance"), .trained = Trained::all};
    EXPECT_EQ(prove::SubsetCheck(loader(), setting).check({name}).verdict, Row::refused) << name;
  }
}

std::vector<std::pair<Setting, std::string>> rounding_settings() {
  const std::vector<std::string> names = prove::rounding_strategies(loader());
  std::vector<std::pair<Setting, std::string>> list;
  for (std::size_t i = 0; i < subjects().size(); ++i)
    for (const Setting& setting : settings_of(subjects()[i]))
      for (std::size_t j = 0; j < names.size(); ++j) {
        const bool turn = (setting.dtype == at::kFloat) == ((i + j) % 2 == 0);
        if (setting.adapter == "lora" && setting.trained == Trained::default_targets && setting.micro_batches > 1 &&
            (testing::whole() || turn))
          list.emplace_back(setting, names[j]);
      }
  return list;
}
INSTANTIATE_TEST_SUITE_P(All, Rounding, ::testing::ValuesIn(rounding_settings()), [](const auto& info) {
  std::string name = word_of(info.param.first) + info.param.second;
  std::erase(name, '_');
  return name;
});

}  // namespace
}  // namespace trainer::equivalence
