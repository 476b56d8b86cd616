#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <sampling/guidance.hpp>
#include <trainer/sdk/error.hpp>

namespace trainer::sampling {
namespace {

at::Tensor filled(float value) { return at::full({2, 1, 1, 1, 1}, value); }

/// A model whose output is its "prompt_embeds"; keeps what it was given.
struct FakeModel {
  std::vector<NamedTensors> calls;
  Forward forward() {
    return [this](const NamedTensors& inputs) {
      calls.push_back(inputs);
      return inputs.at("prompt_embeds");
    };
  }
};

Conditioning prompts() { return {{{"prompt_embeds", filled(3)}}, {{"prompt_embeds", filled(1)}}}; }

float run(FakeModel& model, const DiffusionTraits& traits, Conditioning conditioning, double guidance, double sigma) {
  const at::Tensor v = guided_velocity(model.forward(), traits, std::move(conditioning), guidance)(filled(9), sigma);
  return v.flatten()[0].item<float>();
}

TEST(Guidance, EmbeddedGuidanceIsAnInputOfOneForward) {
  FakeModel model;
  DiffusionTraits traits;
  traits.guidance_embedded = true;
  EXPECT_EQ(run(model, traits, {prompts().positive, {}}, 3.5, 0.25), 3.0F);
  ASSERT_EQ(model.calls.size(), 1U);
  const NamedTensors& inputs = model.calls[0];
  EXPECT_EQ(inputs.at("guidance").sizes(), (std::vector<int64_t>{2}));
  EXPECT_EQ(inputs.at("guidance")[1].item<float>(), 3.5F);
  EXPECT_EQ(inputs.at("timestep").sizes(), (std::vector<int64_t>{2}));
  EXPECT_EQ(inputs.at("timestep")[1].item<float>(), 0.25F);
  EXPECT_EQ(inputs.at("timestep").scalar_type(), at::kFloat);
  EXPECT_EQ(inputs.at("latents").flatten()[0].item<float>(), 9.0F);
}

TEST(Guidance, ClassifierFreeGuidanceRunsBothPrompts) {
  FakeModel model;
  EXPECT_EQ(run(model, {}, prompts(), 4, 0.5), 1.0F + 4.0F * (3.0F - 1.0F));
  ASSERT_EQ(model.calls.size(), 2U);
  EXPECT_EQ(model.calls[0].at("prompt_embeds").flatten()[0].item<float>(), 3.0F);
  EXPECT_EQ(model.calls[1].at("prompt_embeds").flatten()[0].item<float>(), 1.0F);
  for (const NamedTensors& inputs : model.calls) EXPECT_EQ(inputs.count("guidance"), 0U);
}

TEST(Guidance, AScaleOfOneOrLessRunsThePromptAlone) {
  for (const double scale : {1.0, 0.0}) {
    FakeModel model;
    EXPECT_EQ(run(model, {}, prompts(), scale, 0.5), 3.0F);
    EXPECT_EQ(model.calls.size(), 1U);
    EXPECT_FALSE(needs_negative({}, scale));
  }
  EXPECT_TRUE(needs_negative({}, 1.5));
}

TEST(Guidance, WithoutNegativePromptAScaleAboveOneIsABadRecipe) {
  FakeModel model;
  try {
    run(model, {}, {prompts().positive, {}}, 4, 0.5);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::bad_recipe);
    EXPECT_STREQ(error.what(), "guidance 4.000000 of this model needs a negative prompt, or a scale of 1");
  }
}

TEST(Guidance, TraitsTurnTimeAndSign) {
  FakeModel model;
  DiffusionTraits traits;
  traits.time_at_noise = 0;
  traits.velocity_sign = -1;
  EXPECT_EQ(run(model, traits, {prompts().positive, {}}, 1, 0.75), -3.0F);
  EXPECT_EQ(model.calls[0].at("timestep")[0].item<float>(), 0.25F);
  EXPECT_EQ(model_time({}, 0.75), 0.75);
}

TEST(Guidance, LowPrecisionOutputsAreCombinedInFp32) {
  const Forward forward = [](const NamedTensors& inputs) { return inputs.at("prompt_embeds").to(at::kBFloat16); };
  EXPECT_EQ(guided_velocity(forward, {}, prompts(), 1.0078125 * 3)(filled(0), 1).scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace trainer::sampling
