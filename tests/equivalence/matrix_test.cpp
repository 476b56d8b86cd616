/// @file The equivalence matrix: every model x {fp32, bf16} x what is trained x micro-batches x every subset of the
/// memory strategies that the build offers, against the run without strategies. Moving and recomputing may not change
/// a bit; where weights are packed, the run with the packing alone is what the others must equal. Quick: a quarter of
/// the settings, each with every subset.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <support/device.hpp>
#include <support/whole.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>

#include "subjects.hpp"

namespace trainer::equivalence {
namespace {

using prove::Row;
using prove::Setting;
using prove::Trained;
using prove::Trajectory;

/// The rows of the table, printed and written when all cells are done.
class Table_ final : public ::testing::Environment {
 public:
  void add(const Row& row) { rows_ += row.text() + "\n"; }
  void TearDown() override {
    if (rows_.empty()) return;
    const std::string text = prove::table_head() + rows_;
    std::printf("%s", text.c_str());
    if (const char* file = std::getenv("TRAINER_TEST_TABLE"); file != nullptr)
      std::ofstream(file) << "# Equivalence of memory strategies\n\nThree optimiser steps, single device, CPU.\n\n"
                          << text;
  }

 private:
  std::string rows_;
};
Table_& table() {
  static auto* const instance =
      dynamic_cast<Table_*>(::testing::AddGlobalTestEnvironment(new Table_));  // owned by GoogleTest
  return *instance;
}

class Matrix : public ::testing::TestWithParam<Setting> {};

/// A model of the registry that nothing trains is a cell that fails.
TEST(Models, EachHasASubject) {
  for (const std::string& missing : models().missing) {
    ADD_FAILURE() << missing;
    table().add({.setting = missing, .subset = "all", .result = "FAILED: not run"});
  }
  EXPECT_GE(subjects().size(), 6U) << "conformance, two of flux2, three of tests/out_of_tree";
}

TEST_P(Matrix, CorrectnessAndParityOfEverySubset) {
  std::vector<std::string> all = prove::memory_strategies(loader());
  if (!testing::test_device().is_cpu())  // those of tests/out_of_tree know host memory only
    std::erase_if(all, [](const std::string& name) { return name == "block_swap" || name == "host_offload"; });
  ASSERT_GE(all.size(), 3U);
  const std::vector<Row> rows = prove::check_subsets(loader(), GetParam(), all);
  EXPECT_EQ(rows.size(), std::size_t{1} << all.size()) << "no cell is left out";
  std::size_t pairs = 0;
  for (const Row& row : rows) {
    EXPECT_EQ(row.verdict, expected(GetParam(), row.subset)) << row.text();
    pairs += row.result.find("both choose what is recomputed") != std::string::npos;
    table().add(row);
  }
  EXPECT_EQ(pairs, rows.size() / 4) << "full and selective checkpointing want one place, and nothing else does";
  for (const std::string& name : all) {
    if (name == "fp8_weight_only" && GetParam().trained == Trained::all) continue;
    EXPECT_TRUE(std::any_of(
        rows.begin(), rows.end(),
        [&](const Row& row) { return row.verdict == Row::equal && row.subset.find(name) != std::string::npos; }))
        << name << " runs in no combination";
  }
}

/// All trained tensors take part: with B = 0 the first step's A has no gradient, later ones have.
TEST_P(Matrix, EveryTrainedTensorLearns) {
  const Trajectory run = prove::run_cell(loader(), GetParam(), prove::stack_of(loader(), {}));
  EXPECT_EQ(run.losses.size(), 3U);
  ASSERT_EQ(run.gradients.size(), run.weights.size());
  std::string still;
  for (const auto& [name, list] : run.gradients) {
    EXPECT_EQ(list.size(), 3 * static_cast<std::size_t>(GetParam().micro_batches)) << "a hook fires once a micro-batch";
    double sum = 0;
    for (const at::Tensor& grad : list) sum += grad.abs().sum().item<double>();
    EXPECT_TRUE(std::isfinite(sum)) << name;
    if (sum == 0) still += name + " ";
  }
  EXPECT_EQ(still, "");
}

INSTANTIATE_TEST_SUITE_P(All, Matrix, ::testing::ValuesIn(testing::share_of(matrix_settings(testing::whole()))),
                         [](const auto& info) { return word_of(info.param); });

/// Every two choices that meet in the whole matrix meet in the quick one.
TEST(QuickMatrix, HoldsEveryPairOfChoices) {
  const auto pairs = [](const std::vector<Setting>& settings) {
    std::set<std::string> found;
    for (const Setting& one : settings) {
      const std::array<std::string, 4> choices{"model " + one.subject.name, one.adapter + prove::text_of(one.trained),
                                               at::toString(one.dtype), std::to_string(one.micro_batches)};
      for (std::size_t i = 0; i < choices.size(); ++i)
        for (std::size_t j = 0; j < i; ++j) found.insert(choices[i] + ", " + choices[j]);
    }
    return found;
  };
  EXPECT_EQ(pairs(matrix_settings(false)), pairs(matrix_settings(true)));
  EXPECT_LE(matrix_settings(false).size() * 4, matrix_settings(true).size());
}

/// What CI runs of it: shares that together are the whole, each item in one.
TEST(Shares, TogetherAreTheWhole) {
  const std::vector<int> all{0, 1, 2, 3, 4, 5, 6};
  EXPECT_EQ(testing::share_of(all, nullptr), all);
  EXPECT_EQ(testing::share_of(all, "1/3"), (std::vector<int>{0, 3, 6}));
  EXPECT_EQ(testing::share_of(all, "2/3"), (std::vector<int>{1, 4}));
  EXPECT_EQ(testing::share_of(all, "3/3"), (std::vector<int>{2, 5}));
  EXPECT_TRUE(testing::share_of(all, "9/9").empty());
  for (const char* wrong : {"0/3", "4/3", "1-3"}) EXPECT_THROW(testing::share_of(all, wrong), std::invalid_argument);
}

/// A step that dies in any micro-batch, before its forward or with its activations kept, and is run again: as if
/// nothing had happened.
TEST(Retry, OfAStepThatDied) {
  if (!testing::test_device().is_cpu())
    GTEST_SKIP() << "with strategies of tests/out_of_tree that know host memory only";
  for (const prove::Subject& subject : subjects())
    for (const std::vector<std::string>& names : {std::vector<std::string>{},
                                                  {"full_checkpointing"},
                                                  {"block_swap"},
                                                  {"block_swap", "full_checkpointing", "host_offload"}})
      for (const Row& row : prove::check_failures(loader(), settings_of(subject)[1], names))
        EXPECT_EQ(row.verdict, Row::equal) << row.text();
}

/// The comparison itself sees one bit, and says where.
TEST(Difference, SeesOneBit) {
  const Setting setting{subject_named("toy"), at::kFloat, Trained::default_targets, 1};
  const Trajectory run = prove::run_cell(loader(), setting, prove::stack_of(loader(), {}));
  EXPECT_FALSE(first_difference(run, run));
  const auto text = [&](const Trajectory& other) {
    const auto difference = first_difference(other, run);
    return difference ? difference->text() : "equal";
  };
  Trajectory other = run;
  at::Tensor& grad = other.gradients.at("blocks.1.up.lora_B.weight")[1];
  grad = grad.clone();
  grad[3][2] = std::nextafter(grad[3][2].item<float>(), 1e9F);
  EXPECT_TRUE(text(other).starts_with("gradient 1 of blocks.1.up.lora_B.weight at [3, 2]: ")) << text(other);
  EXPECT_TRUE(text(other).ends_with("of its maximum; 1 tensor differs")) << text(other);
  // The first one is not the largest, which is told with its place.
  at::Tensor& later = other.gradients.at("blocks.0.down.lora_B.weight")[2];
  later = later.clone();
  later[1][0] = later[1][0].item<float>() + 3 * later.abs().max().item<float>();
  EXPECT_TRUE(text(other).starts_with("gradient 1 of blocks.1.up.lora_B.weight at [3, 2]: ")) << text(other);
  EXPECT_NE(text(other).find("; largest difference 3.0e+00 of its maximum, in gradient 2 of "
                             "blocks.0.down.lora_B.weight at [1, 0]: "),
            std::string::npos)
      << text(other);
  EXPECT_TRUE(text(other).ends_with("; 2 tensors differ")) << text(other);
  EXPECT_GT(prove::distance(other, run).later, 0.1);
  EXPECT_EQ(prove::distance(run, run).gradients, 0);
  other = run;
  other.losses[1] = std::nextafter(other.losses[1], 1e9);
  EXPECT_TRUE(text(other).starts_with("loss of step 2: ")) << text(other);
  other = run;
  other.gradients.at("blocks.1.up.lora_B.weight").pop_back();
  EXPECT_EQ(text(other), "number of gradients of blocks.1.up.lora_B.weight");
  other = run;
  other.weights.at("blocks.0.down.lora_A.weight") = run.weights.at("blocks.0.down.lora_A.weight") * 2;
  EXPECT_TRUE(text(other).starts_with("weight blocks.0.down.lora_A.weight at [0, 0]: ")) << text(other);
  other = run;
  other.weights.at("blocks.0.down.lora_A.weight") = run.weights.at("blocks.0.down.lora_A.weight").t();
  EXPECT_NE(text(other).find("instead of"), std::string::npos) << text(other);
}

}  // namespace
}  // namespace trainer::equivalence
