/// @file Plans of the budget planner: whatever way each block is run, three steps are those of the plain run, bit for
/// bit. (That the ways fit a budget is another test's matter.)
#include <gtest/gtest.h>

#include <assembly/planned.hpp>
#include <planner/budget_plan.hpp>
#include <random>

#include "subjects.hpp"

namespace trainer::equivalence {
namespace {

using assembly::Candidates;
using assembly::PlannedRecompute;
using execution::MemoryStack;
using prove::Setting;
using prove::Trajectory;

MemoryStack stack_of_plan(std::vector<std::size_t> ways) {
  auto plan = std::make_unique<PlannedRecompute>(assembly::make_candidates(loader()).recompute);
  plan->set(std::move(ways));
  std::vector<MemoryStack::Named> named;
  named.push_back({"plan", std::move(plan)});
  return MemoryStack(std::move(named));
}

TEST(Plan, CandidatesComeFromTheManifests) {
  const Candidates candidates = assembly::make_candidates(loader());
  std::vector<std::string> labels;
  for (const auto& candidate : candidates.recompute) labels.push_back(candidate.label);
  EXPECT_EQ(labels, (std::vector<std::string>{"full_checkpointing", "selective_checkpointing save = [\"attention\"]",
                                              "selective_checkpointing save = [\"every_second_matmul\"]",
                                              "selective_checkpointing save = [\"matmul\"]",
                                              "selective_checkpointing save = [\"attention\", \"matmul\"]"}));
  ASSERT_EQ(candidates.formats.size(), 1U);
  EXPECT_EQ(candidates.formats[0].label, "fp8_weight_only");
  for (const auto& candidate : candidates.recompute)
    EXPECT_TRUE(assembly::compatible(candidate, candidates.formats[0]));
}

TEST(Plan, LabelsLeadBackToWays) {
  PlannedRecompute plan(assembly::make_candidates(loader()).recompute);
  for (std::size_t way = 0; way < plan.ways(); ++way) EXPECT_EQ(plan.way(plan.label(way)), way);
  EXPECT_EQ(plan.label(0), "none");
  EXPECT_THROW(static_cast<void>(plan.way("gone")), Error);
  EXPECT_FALSE(plan.choose({}).recompute) << "before a plan is set every block runs plainly";
}

TEST(Plan, FileReadsBackAndTableJoinsEqualNeighbours) {
  planner::BudgetPlan plan{2'000'000'000, 1'500'000'000, "none", {}, 4e12, 1e12};
  for (int i = 0; i < 3; ++i)
    plan.blocks.push_back({"double." + std::to_string(i), "double", "full_checkpointing", 1000 + i, 5e9});
  plan.blocks.push_back({"single.0", "single", "none", 250'000'000, 0});
  EXPECT_EQ(planner::parse_plan(planner::to_json(plan), "plan.json"), plan);
  EXPECT_EQ(planner::describe(plan),
            "plan for memory.budget = 2.0 GB: predicted peak 1.5 GB, weights as they are\n"
            "  blocks                 run with            kept, each  recomputed, each\n"
            "  double.0 ... double.2  full_checkpointing  1.0 kB      5.0 GFLOP\n"
            "  single.0               none                250 MB      0 FLOP\n"
            "  a step takes, by its FLOPs, 1.25 x the time without recomputation\n"
            "  the least work of all combinations that fit (exact, in bytes)\n");
  plan.quantum = 1024;
  EXPECT_EQ(planner::parse_plan(planner::to_json(plan), "plan.json"), plan);
  EXPECT_NE(planner::describe(plan).find("kept bytes of a block counted in steps of 1.0 kB\n"), std::string::npos);
  const std::string huge =
      R"({"budget": 1e300, "peak": 1, "format": "none", "flops": 1, "recomputed_flops": 0, "blocks": []})";
  const std::string negative =
      R"({"budget": 1, "peak": -1, "format": "none", "flops": 1, "recomputed_flops": 0, "blocks": []})";
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("{}"), std::string("{\"budget\": \"x\"}"), huge, negative}) {
    try {
      planner::parse_plan(text, "run/plan.json");
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::bad_input);
      EXPECT_NE(std::string(error.what()).find("run/plan.json"), std::string::npos) << error.what();
    }
  }
}

TEST(Plan, IsToldFromThatOfAnotherRecipeOrModel) {
  planner::BudgetPlan plan{2'000'000, 1'000'000, "none", {{"double.0", "double", "none", 9, 0}}, 4e12, 1e12};
  planner::BudgetPlan other = plan;
  other.peak = 5, other.blocks[0].kept = 7;
  EXPECT_TRUE(planner::same_ways(plan, other));
  other.blocks[0].way = "full_checkpointing";
  EXPECT_FALSE(planner::same_ways(plan, other));
  other = plan, other.format = "fp8_weight_only";
  EXPECT_FALSE(planner::same_ways(plan, other));
  EXPECT_NO_THROW(planner::require_blocks(plan, {"double.0"}, "run/plan.json"));
  for (const std::vector<std::string>& names : {std::vector<std::string>{}, {"double.1"}, {"double.0", "single.0"}}) {
    try {
      planner::require_blocks(plan, names, "run/plan.json");
      FAIL() << names.size();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("run/plan.json: this plan"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("delete this file"), std::string::npos) << error.what();
    }
  }
}

TEST(Plan, EveryMixtureOfWaysEqualsThePlainRun) {
  std::mt19937 random(7);
  const std::size_t ways = assembly::make_candidates(loader()).recompute.size() + 1;
  for (const prove::Subject& subject : subjects())
    for (const Setting& setting : settings_of(subject)) {
      if (setting.micro_batches != 3 || setting.adapter != "lora") continue;
      const Trajectory plain = prove::run_cell(loader(), setting, stack_of_plan({}));
      for (int i = 0; i < 4; ++i) {
        std::vector<std::size_t> plan(16);
        std::string text;
        for (std::size_t& way : plan) text += std::to_string(way = random() % ways);
        const auto differs = first_difference(prove::run_cell(loader(), setting, stack_of_plan(plan)), plain);
        EXPECT_FALSE(differs) << text_of(setting) << " ways " << text << ": " << differs->text();
      }
    }
}

}  // namespace
}  // namespace trainer::equivalence
