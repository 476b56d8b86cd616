/// @file Splits of FLUX.2-dev from its real shapes: 8 double and 48 single blocks, 32.2 billion parameters.
#include <gtest/gtest.h>

#include <assembly/part_costs.hpp>
#include <assembly/random_source.hpp>
#include <execution/stages.hpp>

#include <flux2/model.hpp>
#include <flux2/names.hpp>

#include "devices.hpp"
#include "split_options.hpp"

namespace trainer::placement {
namespace {

flux2::Config dev() {
  flux2::Config config;
  config.in_channels = config.out_channels = 128;
  config.num_layers = 8;
  config.num_single_layers = 48;
  config.heads = 48;
  config.head_dim = 128;
  config.joint_dim = 15360;
  config.time_channels = 256;
  config.mlp_hidden = 18432;
  config.axes = {32, 32, 32, 32};
  config.guidance = true;
  return config;
}

/// Nothing of it is read.
PlacementRequest dev_request(WeightFormat* format) {
  init_devices();
  std::vector<NamedShape> tensors;
  for (const auto& [name, shape] : flux2::expected_tensors(dev())) tensors.push_back({name, shape, "BFloat16"});
  assembly::RandomSource source(tensors, 1, "FLUX.2-dev");
  assembly::BuildOptions build;
  build.dtype = at::kBFloat16;
  build.headers_only = true;
  build.format = format;
  assembly::SourceBuilder builder(source, build);
  const Options options("model", Table{{"round_time", {false}}});
  flux2::Flux2Model model(ModelContext{options, source, "", builder});
  EXPECT_EQ(model.describe().find("FLUX.2 dev, 8 double + 48 single blocks, 32.2"), 0U) << model.describe();
  PlacementRequest request = assembly::placement_request(model, builder.inventory(), source, build);
  request.micro_batches = 4;
  request.devices = {sim::device(0), sim::device(1)};
  return request;
}

std::string first_on_second(const PlacementRequest& request, const Table& changes) {
  const PlacementPlan plan = split_placement(changes)->plan(request);
  execution::check_plan(plan, request, "split");
  return request.blocks[execution::stages_of(plan)[1].first].name;
}

int64_t bytes_on(const PlacementRequest& request, const Table& changes, std::size_t stage) {
  const PlacementPlan plan = split_placement(changes)->plan(request);
  const execution::Stage part = execution::stages_of(plan)[stage];
  int64_t bytes = part.prologue ? request.prologue.weight_bytes : 0;
  for (std::size_t i = part.first; i < part.end; ++i) bytes += request.blocks[i].weight_bytes;
  return bytes + (part.epilogue ? request.epilogue.weight_bytes : 0);
}

TEST(Flux2Dev, AllBlocksCostTheSameAndDoubleOnesWeighTwice) {
  const PlacementRequest request = dev_request(nullptr);
  ASSERT_EQ(request.blocks.size(), 56U);
  EXPECT_TRUE(request.epilogue_apart);
  for (const PartCost& block : request.blocks) EXPECT_DOUBLE_EQ(block.flops, 26.0 * 6144 * 6144) << block.name;
  EXPECT_NEAR(static_cast<double>(request.blocks[0].weight_bytes) / static_cast<double>(request.blocks[8].weight_bytes),
              2, 1e-3);
}

TEST(Flux2Dev, TheComputeBalancedCutIsAtSingleBlock20) {
  const PlacementRequest request = dev_request(nullptr);
  EXPECT_EQ(first_on_second(request, {}), "single.20");
  EXPECT_EQ(first_on_second(request, {{"balance", {std::string("memory")}}}), "single.15");
  EXPECT_EQ(first_on_second(request, {{"at", {Array{{std::string("single.24")}}}}}), "single.24");
  // 62.8 GB of weights in bf16, more than two thirds of them where the double blocks are.
  EXPECT_NEAR(static_cast<double>(bytes_on(request, {}, 0)) / 1e9, 36.8, 0.5);
  EXPECT_NEAR(static_cast<double>(bytes_on(request, {}, 1)) / 1e9, 27.6, 0.5);
}

/// Packed to one byte, embedders and modulation as they are: 19.2 and 13.8 GB, two cards of 24 GB; a smaller second
/// card takes fewer blocks.
TEST(Flux2Dev, FitsTwoCardsWhenPacked) {
  equivalence::loader().require("memory", "fp8_weight_only");
  const execution::MemoryStack stack = prove::stack_of(equivalence::loader(), {"fp8_weight_only"});
  const PlacementRequest request = dev_request(stack.format());
  EXPECT_NEAR(static_cast<double>(bytes_on(request, {}, 0)) / 1e9, 19.2, 0.1);
  EXPECT_NEAR(static_cast<double>(bytes_on(request, {}, 1)) / 1e9, 13.8, 0.3);
  const auto budgets = [](const std::string& a, const std::string& b) { return Table{{"budgets", {Array{{a}, {b}}}}}; };
  EXPECT_EQ(first_on_second(request, budgets("24GB", "24GB")), "single.20");
  EXPECT_EQ(first_on_second(request, budgets("24GB", "12GB")), "single.24");
  EXPECT_THROW(split_placement(budgets("16GB", "12GB"))->plan(request), Error);
}

}  // namespace
}  // namespace trainer::placement
