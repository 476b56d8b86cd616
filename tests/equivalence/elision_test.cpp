/// @file What the planner says of elision before anything is computed, against what the engine finds by trial in a real
/// step: it never promises more, and on our own models it says the same.
#include <gtest/gtest.h>

#include <adapter/inject.hpp>
#include <assembly/model_builder.hpp>
#include <assembly/planned.hpp>
#include <planner/shape_source.hpp>
#include <planning/dry_run.hpp>
#include <support/components.hpp>

#include "subjects.hpp"

namespace trainer::equivalence {
namespace {

using assembly::PlannedRecompute;
using prove::Setting;
using prove::Trained;

constexpr int64_t kCellSamples = 3;  // of run_cell

/// All blocks run in one way.
execution::MemoryStack stack_of(std::size_t way, std::string& label) {
  auto planned = std::make_unique<PlannedRecompute>(assembly::make_candidates(loader()).recompute);
  label = planned->label(way);
  planned->set(std::vector<std::size_t>(64, way));
  std::vector<execution::MemoryStack::Named> named;
  named.push_back({"plan", std::move(planned)});
  return execution::MemoryStack(std::move(named));
}

std::vector<Linear> adapted(const Setting& setting, const Model& model, const assembly::Inventory& inventory) {
  if (setting.trained == Trained::default_targets) return adapter::select(inventory.linears, model.default_targets());
  std::vector<Linear> layers;
  for (const Linear& linear : inventory.linears)
    if (adapter::matches("*modulation*", linear.name()) || adapter::matches("*time*embed*", linear.name()))
      layers.push_back(linear);
  return layers;
}

/// Every block of the setting's model as the planner sees it.
std::vector<planning::BlockPlan> foretold(const Setting& setting, const execution::MemoryStack& memory) {
  const auto source = planner::shapes_of(setting.subject.open());
  assembly::BuildOptions options;
  options.dtype = setting.dtype;
  options.device = at::kMeta;
  options.trained = setting.trained == Trained::all;
  assembly::SourceBuilder builder(*source, options);
  const Options none("model", {{"round_time", {true}}});
  const auto model =
      loader().registry().models.at(setting.subject.component).create({none, *source, setting.subject.config, builder});
  const auto adapter = testing::lora({{"rank", {int64_t{32}}}, {"alpha", {32.0}}});  // the defaults of run_cell
  const std::vector<Parameter*> trained =
      options.trained ? assembly::trained_parameters(builder.inventory())
                      : adapter::inject(*adapter, adapted(setting, *model, builder.inventory()), 1, at::kMeta);
  const auto objective = testing::flow_matching();
  PlacementPlan placement = testing::one_device(model->blocks().size(), 1);
  placement.prologue = placement.epilogue = at::kMeta;
  placement.blocks.assign(model->blocks().size(), at::kMeta);
  const prove::SampleShapes sizes = prove::shapes_of(*model, *objective, {});
  planning::BatchShape batch{kCellSamples, sizes.latents, {}};
  for (const auto& [name, input] : sizes.conditioning)
    batch.conditioning.push_back({name, input.below > 0 ? at::kLong : at::kFloat, input.shape});
  return planning::dry_blocks({*model, *objective, memory, placement, trained, {}, false, 1.0, 1, std::move(batch)});
}

class Elision : public ::testing::TestWithParam<Setting> {};

TEST_P(Elision, IsForetold) {
  const Setting& setting = GetParam();
  const std::size_t ways = assembly::make_candidates(loader()).recompute.size() + 1;
  double most = 0;
  for (std::size_t way = 1; way < ways; ++way) {
    std::string label;
    const prove::Trajectory real = prove::run_cell(loader(), setting, stack_of(way, label));
    const std::vector<planning::BlockPlan> dry = foretold(setting, stack_of(way, label));
    ASSERT_FALSE(real.recompute.empty()) << label;
    for (const auto& [type, report] : real.recompute) {
      SCOPED_TRACE(label + ", " + type);
      // The report is of the block whose backward came last.
      const auto block = std::find_if(dry.begin(), dry.end(), [&](const auto& one) { return one.type == type; });
      ASSERT_NE(block, dry.end());
      const planner::BlockCost& cost = block->cost;
      std::printf("%s: %s: %.0f of %.0f FLOP recomputed, foretold %.0f\n", label.c_str(), type.c_str(),
                  report.recomputed_flops, report.forward_flops, cost.recomputed_flops);
      EXPECT_DOUBLE_EQ(cost.recomputed_flops + cost.elided_flops, report.recomputed_flops + report.elided_flops);
      EXPECT_DOUBLE_EQ(cost.recomputed_flops, report.recomputed_flops);
      most = std::max(most, cost.elided_flops / cost.forward_flops);
    }
  }
  if (setting.trained == Trained::default_targets && setting.subject.component == "flux2") {
    EXPECT_GT(most, 0.1) << "something is dead";
  }
}

std::vector<Setting> elision_settings() {
  std::vector<Setting> list;
  for (const prove::Subject& subject : subjects())
    for (const Trained trained : {Trained::default_targets, Trained::shared_layers, Trained::all}) {
      // The experts' prologue reads the timestep: no plan is made for them.
      if (objective_of(subject) != "flow_matching" || subject.component == "experts") continue;
      if (trained == Trained::shared_layers && subject.component != "flux2") continue;
      list.push_back({subject, at::kFloat, trained});
    }
  return list;
}
INSTANTIATE_TEST_SUITE_P(Subjects, Elision, ::testing::ValuesIn(elision_settings()), [](const auto& info) {
  std::string name = prove::text_of(info.param);
  std::erase_if(name, [](unsigned char c) { return std::isalnum(c) == 0; });
  return name;
});

}  // namespace
}  // namespace trainer::equivalence
