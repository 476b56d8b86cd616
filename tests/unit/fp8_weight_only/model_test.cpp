/// @file The plugin on a real model: what is packed, LoRA on top, with recomputation, and files that do not show it.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <trainer/sdk/eight_bit_weights.hpp>
#include <trainer/sdk/error.hpp>

#include <checkpoint/train_state.hpp>
#include <run/export.hpp>
#include <support/parity.hpp>
#include <weights/tensor_file.hpp>

#include "flux2_model.hpp"

namespace trainer::fp8 {
namespace {

using namespace eight_bits;

using testing::fp8_options;
using testing::open_model;
using testing::Result;
using testing::Setting;

void expect_equal(const Result& a, const Result& b) {
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_TRUE(test::same_bits(a.output, b.output));
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (const auto& [name, gradient] : a.gradients) EXPECT_TRUE(test::same_bits(gradient, b.gradients.at(name))) << name;
}

Result result_of(const Setting& setting) {
  assembly::LoadedModel loaded = open_model(setting);
  return testing::run(loaded);
}

/// Layers whose weight takes less than their bf16 numbers.
std::vector<std::string> packed_layers(const assembly::LoadedModel& loaded) {
  std::vector<std::string> names;
  for (const Linear& linear : loaded.inventory.linears) {
    const LinearState& state = linear.state();
    if (state.frozen->bytes() < state.in * state.out * 2) names.push_back(state.name);
  }
  return names;
}

TEST(Fp8Model, PacksTheBlocksAndNothingElse) {
  const assembly::LoadedModel loaded = open_model({.fp8 = fp8_options()});
  std::vector<std::string> expected;
  int64_t bytes = 0;
  for (Block* block : loaded.model->blocks())
    for (const Linear& linear : block->info().linears) {
      expected.push_back(linear.name());
      EXPECT_EQ(linear.state().frozen->bytes(), linear.state().in * linear.state().out + 4 * linear.state().out);
    }
  EXPECT_EQ(packed_layers(loaded), expected);
  for (const Linear& linear : loaded.inventory.linears) bytes += linear.state().frozen->bytes();
  for (const ParameterPtr& parameter : loaded.inventory.parameters)
    bytes += static_cast<int64_t>(parameter->value().nbytes());
  EXPECT_EQ(loaded.inventory.weight_bytes, bytes);
}

TEST(Fp8Model, ExcludeIsForTheRecipeToSay) {
  const Table everything = fp8_options({{"exclude", {Array{}}}});
  const assembly::LoadedModel all = open_model({.fp8 = everything});
  EXPECT_EQ(packed_layers(all).size(), all.inventory.linears.size());
  const Table no_single = fp8_options({{"exclude", {Array{{std::string("single_transformer_blocks.*.to_out")}}}}});
  const assembly::LoadedModel some = open_model({.fp8 = no_single});
  EXPECT_EQ(packed_layers(some).size(), some.inventory.linears.size() - 4);
}

/// The model with dense weights of the packed numbers gives the same bits, LoRA and all.
TEST(Fp8Model, EqualsADenseModelOfItsNumbers) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const char* granularity : {"channel", "tensor", "block"}) {
      const Table options = fp8_options({{"granularity", {std::string(granularity)}}});
      const Setting setting{.dtype = dtype, .fp8 = options};
      assembly::LoadedModel dense = open_model(setting);
      for (const Linear& linear : dense.inventory.linears)
        linear.state().frozen = std::make_shared<DenseWeight>(linear.state().frozen->dense(dtype));
      expect_equal(result_of(setting), testing::run(dense));
    }
}

TEST(Fp8Model, EveryLoraTensorGetsAGradient) {
  const Result result = result_of({.fp8 = fp8_options()});
  ASSERT_EQ(result.gradients.size(), 2U * (2 * 4 + 4 * 2));
  for (const auto& [name, gradient] : result.gradients) {
    EXPECT_EQ(gradient.scalar_type(), at::kFloat) << name;
    EXPECT_GT(gradient.abs().sum().item<double>(), 0) << name;
  }
}

TEST(Fp8Model, SameBitsEveryTimeAndWithRecomputation) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Result plain = result_of({.dtype = dtype, .fp8 = fp8_options()});
    expect_equal(result_of({.dtype = dtype, .fp8 = fp8_options()}), plain);
    expect_equal(result_of({.dtype = dtype, .fp8 = fp8_options(), .recompute = true}), plain);
    const Table keep = fp8_options({{"keep", {std::string("block")}}});
    expect_equal(result_of({.dtype = dtype, .fp8 = keep, .recompute = true}), plain);
  }
}

/// keep = "block" holds weights between recompute and backward; without a recompute it changes nothing.
TEST(Fp8Model, KeepIsAResidencyThatChangesNoBit) {
  const Table keep = fp8_options({{"keep", {std::string("block")}}});
  EXPECT_NE(open_model({.fp8 = keep}).memory.residency(), nullptr);
  EXPECT_EQ(open_model({.fp8 = fp8_options()}).memory.residency(), nullptr);
  expect_equal(result_of({.fp8 = keep}), result_of({.fp8 = fp8_options()}));
}

/// An exported adapter and a checkpoint hold the same tensors with and without packing.
TEST(Fqn, FilesDoNotShowTheStrategy) {
  const auto folder = std::filesystem::path(::testing::TempDir());
  std::vector<std::map<std::string, std::string>> exports, states;
  for (const bool packed : {false, true}) {
    assembly::LoadedModel loaded = open_model({.fp8 = packed ? std::optional(fp8_options()) : std::nullopt});
    const auto describe = [](std::string& text, at::ScalarType dtype, at::IntArrayRef shape) {
      text = c10::toString(dtype);
      for (const int64_t size : shape) text += " " + std::to_string(size);
    };
    const weights::TensorFile file(run::export_trained(loaded, folder / "fp8_export.safetensors", 1));
    exports.emplace_back();
    for (const std::string& name : file.names())
      describe(exports.back()[name], file.find(name)->dtype, file.find(name)->shape);
    testing::run(loaded);
    optim::AdamW optimizer(loaded.trained, {});
    optimizer.step(1e-3);
    states.emplace_back();
    for (const auto& [name, tensor] : checkpoint::capture({loaded.trained, optimizer}, {}).tensors)
      describe(states.back()[name], tensor.scalar_type(), tensor.sizes());
  }
  EXPECT_EQ(exports[0].size(), 32U);
  EXPECT_EQ(exports[0], exports[1]);
  EXPECT_GE(states[0].size(), 3 * 32U);
  EXPECT_EQ(states[0], states[1]);
}

}  // namespace
}  // namespace trainer::fp8
