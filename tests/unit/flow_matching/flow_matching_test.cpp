/// @file The flow-matching objective: what it makes of a batch and how it scores a prediction.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <assembly/model_builder.hpp>
#include <cmath>
#include <execution/keyed_random.hpp>
#include <support/components.hpp>
#include <support/parity.hpp>
#include <support/toy_model.hpp>

namespace trainer::flow_matching {
namespace {

using testing::flow_matching;
using testing::ToySizes;

struct Toy {
  explicit Toy(const ToySizes& sizes = {})
      : source(testing::toy_weights(sizes)), builder(source, {}), model(builder, sizes) {}
  test::MemorySource source;
  assembly::SourceBuilder builder;
  testing::ToyModel model;
};

Batch batch_of(int64_t size, int64_t step = 4) {
  Batch batch;
  batch.latents = execution::keyed_normal(KeyedRng(3, RngStream::synthetic), {size, 3, 1, 2, 5});
  batch.conditioning["prompt_embeds"] = execution::keyed_normal(KeyedRng(4, RngStream::synthetic), {size, 2, 4});
  for (int64_t b = 0; b < size; ++b) batch.sample_keys.push_back(static_cast<uint64_t>(10 + b));
  batch.step = static_cast<uint64_t>(step);
  return batch;
}

at::Tensor column(const std::vector<double>& values) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size()), 1, 1, 1, 1}, at::kFloat);
  for (std::size_t i = 0; i < values.size(); ++i) tensor[static_cast<int64_t>(i)].fill_(values[i]);
  return tensor;
}

TEST(FlowMatching, MixesNoiseAndLatentsAndAsksForTheirDifference) {
  Toy toy;
  const execution::KeyedRandom random(9);
  const Batch batch = batch_of(3);
  const Example example = flow_matching()->prepare(batch, toy.model, random);
  const at::Tensor noise = random.noise(batch, {3, 1, 2, 5}), s = column(example.times);
  ASSERT_EQ(example.times.size(), 3U);
  EXPECT_TRUE(test::same_bits(example.inputs.at("latents"), (1 - s) * batch.latents + s * noise));
  EXPECT_TRUE(test::same_bits(example.targets.at("velocity"), noise - batch.latents));
  EXPECT_TRUE(test::same_bits(example.inputs.at("timestep"), s.flatten()));
  EXPECT_TRUE(test::same_bits(example.inputs.at("prompt_embeds"), batch.conditioning.at("prompt_embeds")));
  EXPECT_FALSE(example.inputs.contains("guidance")) << "the model embeds none";
  EXPECT_FALSE(example.targets.contains("weight"));
  EXPECT_NE(example.times[0], example.times[1]);
}

/// The levels of an expert are those of the whole way, brought into its share.
TEST(FlowMatching, KeepsToTheModelsShareOfNoiseLevels) {
  Toy whole, share;
  const_cast<DiffusionTraits*>(share.model.diffusion())->noise_from = 0.75;
  const execution::KeyedRandom random(9);
  const std::vector<double> all = flow_matching()->prepare(batch_of(8), whole.model, random).times;
  const Example example = flow_matching()->prepare(batch_of(8), share.model, random);
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_DOUBLE_EQ(example.times[i], 0.75 + 0.25 * all[i]);
}

TEST(FlowMatching, TimesFollowTheKeysOfTheSamples) {
  Toy toy;
  const execution::KeyedRandom random(9);
  const Batch batch = batch_of(3);
  const std::unique_ptr<Objective> objective = flow_matching();
  const Example whole = objective->prepare(batch, toy.model, random);
  for (int64_t b = 0; b < 3; ++b) {
    Batch one;
    one.latents = batch.latents.narrow(0, b, 1);
    one.sample_keys = {batch.sample_keys[static_cast<std::size_t>(b)]};
    one.step = batch.step;
    const Example example = objective->prepare(one, toy.model, random);
    EXPECT_EQ(example.times[0], whole.times[static_cast<std::size_t>(b)]);
    EXPECT_TRUE(test::same_bits(example.inputs.at("latents"), whole.inputs.at("latents").narrow(0, b, 1).contiguous()));
  }
  EXPECT_NE(objective->prepare(batch_of(3, 5), toy.model, random).times, whole.times) << "another step";
  EXPECT_NE(objective->prepare(batch, toy.model, execution::KeyedRandom(10)).times, whole.times) << "another seed";
}

TEST(FlowMatching, ShiftUsesTheTokensOfTheLatents) {
  Toy toy;
  const execution::KeyedRandom random(9);
  const Batch batch = batch_of(1);  // 1 * 2 * 5 tokens: mu = 0.1 in the toy model
  const double normal = random.normal(batch, 0, 1)[0];
  const double raw = 1 / (1 + std::exp(-normal)), e = std::exp(0.1);
  EXPECT_NEAR(flow_matching()->prepare(batch, toy.model, random).times[0], e * raw / (1 + (e - 1) * raw), 1e-15);
}

TEST(FlowMatching, GuidanceOnlyForModelsThatEmbedIt) {
  Toy toy({.guidance = true});
  const Example example =
      flow_matching({{"guidance", {3.5}}})->prepare(batch_of(2), toy.model, execution::KeyedRandom(9));
  EXPECT_TRUE(test::same_bits(example.inputs.at("guidance"), at::full({2}, 3.5, at::kFloat)));
}

TEST(FlowMatching, FollowsTheModelsTimeAndSign) {
  Toy usual, other({.time_at_noise = 0.0, .velocity_sign = -1.0});
  const execution::KeyedRandom random(9);
  const Example one = flow_matching()->prepare(batch_of(2), usual.model, random);
  const Example two = flow_matching()->prepare(batch_of(2), other.model, random);
  EXPECT_EQ(one.times, two.times) << "reports name the noise level";
  EXPECT_TRUE(test::same_bits(one.inputs.at("latents"), two.inputs.at("latents")));
  EXPECT_TRUE(test::same_bits(1 - one.inputs.at("timestep"), two.inputs.at("timestep")));
  EXPECT_TRUE(test::same_bits(-one.targets.at("velocity"), two.targets.at("velocity")));
}

TEST(FlowMatching, PassesReferencesOn) {
  Toy toy;
  Batch batch = batch_of(2);
  batch.references = {batch.latents + 1, batch.latents + 2};
  const Example example = flow_matching()->prepare(batch, toy.model, execution::KeyedRandom(9));
  EXPECT_TRUE(test::same_bits(example.inputs.at("reference_0"), batch.references[0]));
  EXPECT_TRUE(test::same_bits(example.inputs.at("reference_1"), batch.references[1]));
}

TEST(FlowMatching, HalfPrecisionLatentsAreMixedInFp32) {
  Toy toy;
  Batch batch = batch_of(2);
  batch.latents = batch.latents.to(at::kBFloat16);
  const Example example = flow_matching()->prepare(batch, toy.model, execution::KeyedRandom(9));
  EXPECT_EQ(example.inputs.at("latents").scalar_type(), at::kFloat);
  EXPECT_EQ(example.targets.at("velocity").scalar_type(), at::kFloat);
}

TEST(FlowMatching, LossIsTheMeanSquareInFp32) {
  Toy toy;
  const std::unique_ptr<Objective> objective = flow_matching();
  const Example example = objective->prepare(batch_of(3), toy.model, execution::KeyedRandom(9));
  const at::Tensor prediction = example.targets.at("velocity") * 0.5;
  const at::Tensor loss = objective->loss(example, [&] { return prediction; });
  EXPECT_EQ(loss.dim(), 0);
  EXPECT_NEAR(loss.item<double>(), (prediction.to(at::kDouble) * prediction.to(at::kDouble)).mean().item<double>(),
              1e-6);
  const at::Tensor low = objective->loss(example, [&] { return prediction.to(at::kBFloat16); });
  EXPECT_EQ(low.scalar_type(), at::kFloat);
}

TEST(FlowMatching, LossWeightsEachSample) {
  Toy toy;
  const std::unique_ptr<Objective> objective = flow_matching({{"weighting", {std::string("sigma_sqrt")}}});
  const Example example = objective->prepare(batch_of(3), toy.model, execution::KeyedRandom(9));
  const at::Tensor error = example.targets.at("velocity").to(at::kDouble);
  double expected = 0;
  for (int64_t b = 0; b < 3; ++b) {
    const double sigma = example.times[static_cast<std::size_t>(b)];
    expected += (error[b] * error[b]).mean().item<double>() / (sigma * sigma) / 3;
  }
  const at::Tensor loss = objective->loss(example, [&] { return example.targets.at("velocity") * 0; });
  EXPECT_NEAR(loss.item<double>() / expected, 1.0, 1e-6);
}

TEST(FlowMatching, RefusesModelsThatAreNoDiffusionModels) {
  Toy toy;
  toy.model.is_diffusion = false;
  try {
    (void)flow_matching()->prepare(batch_of(1), toy.model, execution::KeyedRandom(9));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::bad_recipe);
    EXPECT_STREQ(error.what(), "objective \"flow_matching\" needs a diffusion model; the model declares none");
  }
}

}  // namespace
}  // namespace trainer::flow_matching
