/// @file The program's own adapter and objective, built out of tree against the installed package: they load, and
/// compute the bits of those in the tree.
#include "strangers.hpp"

#include <ATen/core/grad_mode.h>

#include <adapter/inject.hpp>
#include <filesystem>
#include <recipe/default_options.hpp>
#include <support/components.hpp>
#include <support/toy_model.hpp>

namespace trainer::strangers {
namespace {

plugin::Loader& own() {
  static plugin::Loader instance(
      {{std::filesystem::path(std::getenv("TRAINER_TEST_STRANGERS")) / "own", "an author's build"}});
  return instance;
}

Options defaults_of(const std::string& kind, const std::string& name) {
  return recipe::default_options(plugin::schema_of(own().found(), kind, name));
}

/// Output and gradients of a layer with this adapter, B having moved from zero.
std::vector<at::Tensor> step(const Adapter& adapter) {
  auto state = std::make_shared<LinearState>();
  state->name = "layer";
  state->in = 6, state->out = 5;
  state->frozen = std::make_shared<DenseWeight>(numbers(1, {5, 6}));
  const Linear layer(state);
  const auto parameters = adapter::inject(adapter, {&layer, 1}, 3, at::kCPU);
  {
    const at::NoGradGuard no_grad;
    parameters.at(1)->value().copy_(numbers(2, parameters.at(1)->value().sizes()));
  }
  const at::Tensor y = layer(numbers(4, {7, 6}));
  y.pow(2).sum().backward();
  std::vector<at::Tensor> all{y.detach()};
  for (Parameter* parameter : parameters) all.push_back(parameter->value().grad());
  for (const auto& [name, tensor] : adapter.export_layer(*state)) all.push_back(tensor);
  return all;
}

TEST(OwnPlugins, LoraComputesWhatItDoesInTheTree) {
  own().require("adapter", "lora");
  const auto theirs = own().registry().adapters.at("lora").create(defaults_of("adapter", "lora"));
  const auto ours = testing::lora({{"rank", {int64_t{32}}}, {"alpha", {32.0}}});
  EXPECT_EQ(theirs->describe(), ours->describe());
  EXPECT_TRUE(same(step(*theirs), step(*ours)));
}

TEST(OwnPlugins, FlowMatchingComputesWhatItDoesInTheTree) {
  own().require("objective", "flow_matching");
  const auto theirs = own().registry().objectives.at("flow_matching").create(defaults_of("objective", "flow_matching"));
  const auto ours = testing::flow_matching();
  test::MemorySource source{testing::toy_weights({})};
  assembly::SourceBuilder builder(source, {});
  testing::ToyModel model(builder, {});
  Batch batch;
  batch.latents = numbers(3, {3, 3, 1, 2, 5});
  batch.sample_keys = {10, 11, 12};
  const execution::KeyedRandom random(9);
  const Example a = theirs->prepare(batch, model, random), b = ours->prepare(batch, model, random);
  EXPECT_EQ(a.times, b.times);
  EXPECT_TRUE(test::same_bits(a.inputs.at("latents"), b.inputs.at("latents")));
  const at::Tensor prediction = numbers(5, {3, 3, 1, 2, 5});
  EXPECT_TRUE(test::same_bits(theirs->loss(a, [&] { return prediction; }), ours->loss(b, [&] { return prediction; })));
}

}  // namespace
}  // namespace trainer::strangers
