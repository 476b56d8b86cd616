/// @file Budgets from the least that works to room for everything, on the FLUX.2 miniature: training for real needs no
/// more than the budget, its first step included, and what is learned does not depend on the plan.
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <adapter/inject.hpp>
#include <assembly/model_builder.hpp>
#include <execution/keyed_random.hpp>
#include <execution/trainer.hpp>
#include <planner/byte_counter.hpp>
#include <planner/shape_source.hpp>
#include <planning/budget.hpp>
#include <support/components.hpp>

#include "subjects.hpp"

namespace trainer::equivalence {
namespace {

using assembly::PlannedRecompute;
using prove::Setting;

constexpr uint64_t kSeed = 5;
constexpr int64_t kSamples = 4;

/// A stack that recomputes as `planned` says.
execution::MemoryStack stack_of(PlannedRecompute*& planned) {
  auto made = std::make_unique<PlannedRecompute>(assembly::make_candidates(loader()).recompute);
  planned = made.get();
  std::vector<execution::MemoryStack::Named> named;
  named.push_back({"plan", std::move(made)});
  return execution::MemoryStack(std::move(named));
}

/// The model of a setting with LoRA on its default targets, on the CPU or on shapes alone.
struct Trainee {
  PlannedRecompute* planned = nullptr;
  execution::MemoryStack memory = stack_of(planned);
  std::shared_ptr<WeightSource> source;
  std::unique_ptr<Model> model;
  assembly::Inventory inventory;
  std::unique_ptr<Adapter> adapter = testing::lora();
  std::vector<Parameter*> trained;
  std::unique_ptr<Objective> objective = testing::flow_matching();
  PlacementPlan placement;

  Trainee(const Setting& setting, at::Device device) {
    source = setting.subject.open();
    if (device.is_meta()) source = planner::shapes_of(source);
    assembly::BuildOptions options;
    options.dtype = setting.dtype;
    options.device = device;
    assembly::SourceBuilder builder(*source, options);
    const Options none("model", {{"round_time", {false}}});
    model = loader()
                .registry()
                .models.at(setting.subject.component)
                .create({none, *source, setting.subject.config, builder});
    inventory = builder.inventory();
    trained = adapter::inject(*adapter, adapter::select(inventory.linears, model->default_targets()), kSeed, device);
    placement.prologue = placement.epilogue = device;
    placement.blocks.assign(model->blocks().size(), device);
    for (int64_t micro = 0; micro < setting.micro_batches; ++micro)
      for (const Pass pass : {Pass::forward, Pass::backward}) placement.schedule.push_back({pass, 0, micro});
  }
  [[nodiscard]] prove::RandomBatches batches(const Setting& setting) const {
    return {prove::shapes_of(*model, *objective, {.height = 8, .width = 8, .length = 24}), kSamples,
            setting.micro_batches, at::kCPU, kSeed};
  }
};

/// Highest use of memory while a model is made and trained for two steps with these ways.
int64_t real_peak(const Setting& setting, const std::vector<std::size_t>& ways) {
  const planner::PeakMark mark(at::kCPU);
  Trainee trainee(setting, at::kCPU);
  trainee.planned->set(ways);
  optim::AdamW optimizer(trainee.trained, {});
  prove::RandomBatches data = trainee.batches(setting);
  const execution::KeyedRandom random(kSeed);
  optim::LrSchedule schedule;
  schedule.lr = 1e-3;
  schedule.total_steps = 2;
  execution::Trainer trainer({*trainee.model, *trainee.objective, trainee.memory, trainee.placement, random, data,
                              optimizer, nullptr, schedule, 1.0},
                             0);
  trainer.step();
  trainer.step();
  return mark.above();
}

planning::BatchShape shape_of(prove::RandomBatches data) {
  const Batch batch = data.batch(0, 0);
  planning::BatchShape shape;
  shape.samples = static_cast<int64_t>(batch.sample_keys.size());
  shape.latents = batch.latents.sizes().slice(1).vec();
  for (const auto& [name, tensor] : batch.conditioning)
    shape.conditioning.push_back({name, tensor.scalar_type(), tensor.sizes().slice(1).vec()});
  return shape;
}

class BudgetPeak : public ::testing::TestWithParam<Setting> {};

TEST_P(BudgetPeak, StaysUnderEveryBudgetAndChangesNothing) {
  planner::install_byte_counter();
  const Setting& setting = GetParam();
  Trainee dry(setting, at::kMeta);
  const planning::DryParts parts{
      *dry.model, *dry.objective, dry.memory, dry.placement,         dry.trained,
      {},         false,          1.0,        setting.micro_batches, shape_of(dry.batches(setting))};
  int64_t held = dry.inventory.weight_bytes;
  for (const Parameter* parameter : dry.trained) held += static_cast<int64_t>(parameter->value().nbytes());
  const planning::BudgetCase question{parts, *dry.planned, "none", {held}, at::kCPU};
  const auto everything = planning::answer_budget(question, int64_t{1} << 40);
  ASSERT_TRUE(everything);
  EXPECT_EQ(everything->recomputed_flops, 0) << "with room for everything nothing is recomputed";
  const int64_t smallest = planning::smallest_budget(question);
  EXPECT_FALSE(planning::answer_budget(question, smallest - 1));

  PlannedRecompute* planned = nullptr;
  const prove::Trajectory plain = prove::run_cell(loader(), setting, stack_of(planned));
  double before = -1;
  std::set<double> different;
  for (int i = 0; i <= 6; ++i) {
    const int64_t budget = smallest + (everything->peak - smallest) * i / 6;
    const auto answer = planning::answer_budget(question, budget);
    ASSERT_TRUE(answer) << budget;
    std::vector<std::size_t> ways;
    for (const planner::PlannedBlock& block : answer->blocks) ways.push_back(dry.planned->way(block.way));
    const int64_t peak = real_peak(setting, ways);
    std::printf("%s: budget %ld, foretold %ld, measured %ld (%.3f), recomputed %.3f MFLOP\n%s",
                prove::text_of(setting).c_str(), static_cast<long>(budget), static_cast<long>(answer->peak),
                static_cast<long>(peak), static_cast<double>(peak) / static_cast<double>(answer->peak),
                answer->recomputed_flops / 1e6, planner::describe(*answer).c_str());
    EXPECT_LE(answer->peak, budget);
    EXPECT_LE(peak, budget);
    EXPECT_GT(static_cast<double>(peak), 0.85 * static_cast<double>(answer->peak))
        << "the room that is asked for is used";
    execution::MemoryStack memory = stack_of(planned);
    planned->set(ways);
    const auto differs = first_difference(prove::run_cell(loader(), setting, std::move(memory)), plain);
    EXPECT_FALSE(differs) << differs->text();
    if (before >= 0) {
      EXPECT_LE(answer->recomputed_flops, before * 1.0001) << "more budget is never slower";
    }
    before = answer->recomputed_flops;
    different.insert(before);
  }
  EXPECT_EQ(before, 0) << "the last budget has room for everything";
  EXPECT_GE(different.size(), 3U) << "budgets between lead to plans between";
}

std::vector<Setting> budget_settings() {
  std::vector<Setting> list;
  for (const prove::Subject& subject : subjects())
    if (subject.component == "flux2")
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
        list.push_back({subject, dtype, prove::Trained::default_targets, dtype == at::kFloat ? 1 : 2});
  return list;
}
INSTANTIATE_TEST_SUITE_P(Flux2, BudgetPeak, ::testing::ValuesIn(budget_settings()), [](const auto& info) {
  std::string name = prove::text_of(info.param);
  std::erase_if(name, [](unsigned char c) { return std::isalnum(c) == 0; });
  return name;
});

}  // namespace
}  // namespace trainer::equivalence
