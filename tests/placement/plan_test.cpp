/// @file What a plan must be, whoever made it; and what the split placement refuses, with the numbers.
#include <gtest/gtest.h>

#include <equivalence/subjects.hpp>
#include <execution/stages.hpp>
#include <recipe/default_options.hpp>

#include "devices.hpp"
#include "split_options.hpp"

namespace trainer::placement {
namespace {

PlacementRequest request_of(std::size_t blocks, int devices, int64_t micro_batches = 2) {
  init_devices();
  PlacementRequest request;
  for (std::size_t i = 0; i < blocks; ++i) request.blocks.push_back({"single." + std::to_string(i), 1, 1'000'000'000});
  request.epilogue_apart = true;
  request.micro_batches = micro_batches;
  for (int d = 0; d < devices; ++d) request.devices.push_back(sim::device(d));
  return request;
}

std::string refusal(const Table& changes, const PlacementRequest& request) {
  try {
    split_placement(changes)->plan(request);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::bad_recipe);
    return error.what();
  }
  return "accepted";
}

Array strings(const std::vector<std::string>& texts) {
  Array list;
  for (const std::string& text : texts) list.push_back({text});
  return list;
}

TEST(Split, CutsWhereItIsTold) {
  const PlacementRequest request = request_of(6, 3);
  for (const Array& at : {Array{{int64_t{1}}, {int64_t{4}}}, strings({"single.1", "single.4"})}) {
    const PlacementPlan plan = split_placement({{"at", {at}}})->plan(request);
    execution::check_plan(plan, request, "split");
    EXPECT_EQ(execution::stages_of(plan)[1].first, 1U);
    EXPECT_EQ(execution::stages_of(plan)[2].first, 4U);
    EXPECT_EQ(plan.epilogue, sim::device(2));
  }
}

TEST(Split, KeepsAnUndeclaredEpilogueWithThePrologue) {
  PlacementRequest request = request_of(4, 2);
  request.epilogue_apart = false;
  const PlacementPlan plan = split_placement({})->plan(request);
  execution::check_plan(plan, request, "split");
  EXPECT_EQ(execution::stages_of(plan).size(), 3U);
  EXPECT_EQ(plan.epilogue, plan.prologue);
}

TEST(Split, RefusesWhatCannotBe) {
  const PlacementRequest two = request_of(6, 2);
  const auto holds = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  holds(refusal({{"at", {Array{{int64_t{6}}}}}}, two), "no cut before block 6; the model has 6 blocks, so 1 to 5");
  holds(refusal({{"at", {Array{{int64_t{0}}}}}}, two), "no cut before block 0");
  holds(refusal({{"at", {strings({"singel.3"})}}}, two), "no block \"singel.3\" (did you mean \"single.3\"");
  holds(refusal({{"at", {strings({"single.0"})}}}, two), "leaves a device without a block");
  holds(refusal({{"at", {Array{{int64_t{4}}, {int64_t{2}}}}}}, request_of(6, 3)), "leaves a device without a block");
  holds(refusal({{"at", {Array{{int64_t{1}}, {int64_t{2}}}}}}, two), "2 devices need 1 cuts, not 2");
  holds(refusal({}, request_of(6, 1)), "takes two devices or more");
  holds(refusal({}, request_of(2, 3)), "the model has 2 blocks, too few for 3 devices");
  holds(refusal({{"weights", {Array{{1.0}}}}}, two), "weights: 1 values for 2 devices");
  holds(refusal({{"budgets", {strings({"4GB", "1.5GB"})}}}, two),
        "the weights take 6.00 GB in all, the budgets are sim:0 4.00 GB, sim:1 1.50 GB (5.50 GB)");
  holds(refusal({{"budgets", {strings({"4GB", "lots"})}}}, two), "\"lots\" is no amount of memory");
  holds(refusal({{"budgets", {strings({"4GB", "1GiB"})}}, {"at", {strings({"single.4"})}}}, two),
        "give sim:1 weights of 2.00 GB, its budget is 1.07 GB");
  PlacementRequest twice = request_of(6, 2);
  twice.devices[1] = twice.devices[0];
  holds(refusal({}, twice), "sim:0 stands twice");
}

TEST(Plan, MustRunEverythingInAPossibleOrder) {
  const PlacementRequest request = request_of(4, 2);
  const PlacementPlan good = split_placement({})->plan(request);
  EXPECT_NO_THROW(execution::check_plan(good, request, "stranger"));
  const auto refused = [&](PlacementPlan plan) {
    try {
      execution::check_plan(plan, request, "stranger");
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("stranger"), std::string::npos);
      return text;
    }
    return std::string("accepted");
  };
  PlacementPlan plan = good;
  plan.schedule.pop_back();
  EXPECT_NE(refused(plan).find("leaves out"), std::string::npos);
  plan = good;
  plan.schedule.push_back(plan.schedule.back());
  EXPECT_NE(refused(plan).find("where it cannot run"), std::string::npos);
  plan = good;
  std::swap(plan.schedule.front(), plan.schedule[1]);
  EXPECT_NE(refused(plan).find("stage 1 of micro-batch 0 forward"), std::string::npos);
  plan = good;
  plan.schedule[0].stage = 7;
  EXPECT_NE(refused(plan).find("stage 7"), std::string::npos);
  plan = good;
  plan.blocks.pop_back();
  EXPECT_NE(refused(plan).find("places 3 blocks of 4"), std::string::npos);
  plan = good;
  plan.blocks[3] = sim::device(3);
  EXPECT_NE(refused(plan).find("uses sim:3"), std::string::npos);
}

/// Gradients are added up in the order of backward: another order rounds otherwise.
TEST(Plan, MustRunBackwardInTheOrderOfMicroBatches) {
  const PlacementRequest request = request_of(4, 1);
  PlacementPlan plan;
  plan.prologue = plan.epilogue = sim::device(0);
  plan.blocks.assign(4, sim::device(0));
  plan.schedule = {{Pass::forward, 0, 0}, {Pass::forward, 0, 1}, {Pass::backward, 0, 1}, {Pass::backward, 0, 0}};
  EXPECT_THROW(execution::check_plan(plan, request, "stranger"), Error);
}

}  // namespace
}  // namespace trainer::placement
