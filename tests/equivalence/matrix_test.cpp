/// @file The equivalence matrix: every model x {fp32, bf16} x what is trained x micro-batches x every subset of the
/// memory strategies that the build offers, against the run without strategies. Moving and recomputing may not change
/// a bit; where weights are packed, the run with the packing alone is what the others must equal.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "training.hpp"

namespace trainer::equivalence {
namespace {

plugin::Loader& loader() {
  static plugin::Loader instance = [] {
    std::vector<plugin::SearchFolder> folders;
    std::istringstream list(std::getenv("TRAINER_TEST_PLUGINS"));
    for (std::string folder; std::getline(list, folder, ':');) folders.push_back({folder, "build tree"});
    return plugin::Loader(std::move(folders));
  }();
  return instance;
}

/// The rows of the table, printed and written when all cells are done.
class Table_ final : public ::testing::Environment {
 public:
  void add(const std::string& row) { rows_.push_back(row); }
  void TearDown() override {
    if (rows_.empty()) return;
    std::string text =
        "| model | dtype | trained | micro-batches | strategies | compared with | result "
        "|\n|---|---|---|---|---|---|---|\n";
    for (const std::string& row : rows_) text += row + "\n";
    std::printf("%s", text.c_str());
    if (const char* file = std::getenv("TRAINER_TEST_TABLE"); file != nullptr)
      std::ofstream(file) << "# Equivalence of memory strategies\n\nThree optimiser steps, single device, CPU.\n\n"
                          << text;
  }

 private:
  std::vector<std::string> rows_;
};
Table_& table() {
  static auto* const instance =
      dynamic_cast<Table_*>(::testing::AddGlobalTestEnvironment(new Table_));  // owned by GoogleTest
  return *instance;
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " + ") + name;
  return text.empty() ? "none" : text;
}

class Matrix : public ::testing::TestWithParam<Setting> {};

TEST_P(Matrix, EverySubsetEqualsThePlainRun) {
  const Setting& setting = GetParam();
  const std::vector<std::string> all = memory_strategies(loader());
  ASSERT_FALSE(all.empty());
  std::map<std::vector<std::string>, Trajectory> bases;  // by the strategies that pack weights
  for (std::size_t bits = 0; bits < std::size_t{1} << all.size(); ++bits) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < all.size(); ++i)
      if ((bits >> i & 1U) != 0) names.push_back(all[i]);
    const std::vector<std::string> base_names = packing(loader(), names);
    std::string row = "| " + text_of(setting) + " | " + join(names) + " | " + join(base_names) + " | ";
    try {
      const train::MemoryStack stack = stack_of(loader(), names);
      const Trajectory run = train_three_steps(loader(), setting, stack);
      if (!bases.contains(base_names))
        bases[base_names] = train_three_steps(loader(), setting, stack_of(loader(), base_names));
      const std::string differs = difference(run, bases.at(base_names));
      EXPECT_EQ(differs, "") << row;
      row +=
          differs.empty() ? "bit-equal, " + std::to_string(run.gradient_count()) + " gradients" : "DIFFERS: " + differs;
      // Packed weights may change the result, but not make another model of it.
      if (!base_names.empty()) {
        EXPECT_NEAR(run.losses[0] / bases.at({}).losses[0], 1, 0.1) << row;
      }
    } catch (const Error& error) {
      // Only two strategies that want one place, or that say so, may refuse each other.
      EXPECT_EQ(error.exit_code(), ExitCode::bad_recipe) << error.what();
      EXPECT_GE(names.size(), 2U) << error.what();
      row += std::string("refused: ") + error.what();
    }
    table().add(row + " |");
  }
}

/// All trained tensors take part: with B = 0 the first step's A has no gradient, later ones have.
TEST_P(Matrix, EveryTrainedTensorLearns) {
  const Trajectory run = train_three_steps(loader(), GetParam(), stack_of(loader(), {}));
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

std::vector<Setting> settings() {
  std::vector<Setting> list;
  for (const Subject& subject : subjects(loader()))
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      for (const Trained trained : {Trained::default_targets, Trained::modulation_and_time, Trained::all})
        for (const int64_t micro_batches : {1, 3}) list.push_back({subject, dtype, trained, micro_batches});
  return list;
}
INSTANTIATE_TEST_SUITE_P(All, Matrix, ::testing::ValuesIn(settings()), [](const auto& info) {
  std::string name = text_of(info.param);
  std::erase_if(name, [](unsigned char c) { return std::isalnum(c) == 0; });
  return name;
});

/// A step that dies in its second micro-batch and is run again: as if nothing had happened.
TEST(Retry, OfAStepThatDied) {
  for (const Subject& subject : subjects(loader())) {
    const Setting setting{subject, at::kFloat, Trained::default_targets, 3};
    for (const std::vector<std::string>& names : {std::vector<std::string>{}, {"full_checkpointing"}}) {
      const Trajectory whole = train_three_steps(loader(), setting, stack_of(loader(), names));
      for (const int64_t micro : {0, 1, 2})
        EXPECT_EQ(difference(train_three_steps(loader(), setting, stack_of(loader(), names), micro), whole), "")
            << subject.name << ' ' << join(names) << " micro-batch " << micro;
    }
  }
}

/// The comparison itself sees one bit.
TEST(Difference, SeesOneBit) {
  const Setting setting{subjects(loader())[0], at::kFloat, Trained::default_targets, 1};
  const Trajectory run = train_three_steps(loader(), setting, stack_of(loader(), {}));
  EXPECT_EQ(difference(run, run), "");
  Trajectory other = run;
  at::Tensor& grad = other.gradients.at("blocks.2.up.lora_B.weight")[1];
  grad = grad.clone();
  at::Tensor flat = grad.view(-1);
  flat[0] = std::nextafter(flat[0].item<float>(), 1e9F);
  EXPECT_EQ(difference(run, other), "gradient 1 of blocks.2.up.lora_B.weight");
  other = run;
  other.losses[1] = std::nextafter(other.losses[1], 1e9);
  EXPECT_EQ(difference(run, other), "losses");
  other = run;
  other.gradients.at("blocks.2.up.lora_B.weight").pop_back();
  EXPECT_EQ(difference(run, other), "number of gradients of blocks.2.up.lora_B.weight");
  other = run;
  other.weights.at("blocks.0.down.lora_A.weight") = run.weights.at("blocks.0.down.lora_A.weight") * 2;
  EXPECT_EQ(difference(run, other), "weight blocks.0.down.lora_A.weight");
}

}  // namespace
}  // namespace trainer::equivalence
