/// @file Which blocks a recompute policy is asked for, and what "every N" makes of it: of two experts those of the one
/// that is trained.
#include <gtest/gtest.h>

#include <support/plugins.hpp>

#include "subjects.hpp"

namespace trainer::equivalence {
namespace {

/// What a policy was asked and what it said, by block.
struct Asked {
  int64_t index = 0, count = 0;
  bool recompute = false;
  bool operator==(const Asked&) const = default;
};
void PrintTo(const Asked& asked, std::ostream* out) {
  *out << asked.index << " of " << asked.count << (asked.recompute ? " recomputed" : " plain");
}
using Answers = std::map<std::string, Asked>;

/// Selective checkpointing, overheard.
class Overheard final : public MemoryStrategy, public RecomputePolicy {
 public:
  Overheard(Answers& answers, const std::string& blocks)
      : answers_(answers),
        inner_(testing::make_strategy("selective_checkpointing", {{"blocks", {std::string(blocks)}}})) {}
  RecomputePolicy* recompute_policy() override { return this; }
  CheckpointOptions choose(const Site& site) override {
    const CheckpointOptions options = inner_->recompute_policy()->choose(site);
    answers_[site.block->info().name] = {site.index, site.count, options.recompute};
    return options;
  }
  void after_first_step() override { inner_->recompute_policy()->after_first_step(); }

 private:
  Answers& answers_;
  std::unique_ptr<MemoryStrategy> inner_;
};

Answers answers_of(const std::string& component, const std::string& blocks) {
  Answers answers;
  for (const prove::Subject& subject : subjects()) {
    if (subject.component != component) continue;
    prove::Setting setting{subject, at::kFloat, prove::Trained::default_targets, 3};
    std::vector<execution::MemoryStack::Named> named;
    named.push_back({"selective_checkpointing", std::make_unique<Overheard>(answers, blocks)});
    prove::run_cell(loader(), setting, execution::MemoryStack(std::move(named)));
    break;
  }
  return answers;
}

TEST(EveryN, CountsTheTrainedExpertAlone) {
  const Answers expected{{"high.blocks.0", {0, 2, true}}, {"high.blocks.1", {1, 2, false}}};
  EXPECT_EQ(answers_of("experts", "every 2"), expected);
}

TEST(EveryN, LeavesTheLastOnesOfTheChain) {
  const Answers answers = answers_of("flux2", "every 2");
  ASSERT_GE(answers.size(), 4U);
  for (const auto& [name, asked] : answers) {
    EXPECT_EQ(asked.count, static_cast<int64_t>(answers.size())) << name;
    EXPECT_EQ(asked.recompute, asked.index < asked.count - asked.count / 2) << name;
  }
}

TEST(EveryN, MustLeaveABlockOutOfThoseThatTakePart) {
  try {
    answers_of("experts", "every 3");
    FAIL() << "three of the model's four blocks, but two are trained through";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("\"every 3\" leaves no block out, 2 take part in training"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace trainer::equivalence
