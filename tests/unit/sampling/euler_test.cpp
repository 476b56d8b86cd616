#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <base/rng.hpp>
#include <limits>
#include <sampling/pixels.hpp>
#include <sampling/sample.hpp>
#include <trainer/sdk/error.hpp>

namespace trainer::sampling {
namespace {

at::Tensor number(float value) { return at::full({1, 1, 1, 1, 1}, value); }

TEST(Euler, FollowsTheSigmas) {
  std::vector<double> seen;
  std::vector<int64_t> progress;
  const at::Tensor out = euler(
      [&](const at::Tensor& x, double sigma) {
        seen.push_back(sigma);
        return x * sigma;
      },
      std::vector{1.0, 0.5, 0.0}, number(8),
      [&](int64_t done, int64_t total, const at::Tensor& x) {
        progress.insert(progress.end(), {done, total, static_cast<int64_t>(x.item<float>() * 100)});
      });
  // 8 + (0.5 - 1) * 8 = 4, then 4 + (0 - 0.5) * 4 * 0.5 = 3.
  EXPECT_EQ(out.item<float>(), 3.0F);
  EXPECT_EQ(seen, (std::vector{1.0, 0.5}));
  EXPECT_EQ(progress, (std::vector<int64_t>{1, 2, 400, 2, 2, 300}));
}

TEST(Euler, AStraightPathEndsAtTheDataWhateverTheSchedule) {
  const at::Tensor noise = start_noise(1, 0, 4, 2, 2), data = start_noise(2, 0, 4, 2, 2);
  const at::Tensor out =
      euler([&](const at::Tensor&, double) { return noise - data; }, std::vector{1.0, 0.97, 0.3, 0.0}, noise);
  EXPECT_LT((out - data).abs().max().item<float>(), 1e-6F);
}

TEST(Euler, KeepsFp32StateAndRecordsNoGraph) {
  const at::Tensor weight = number(1).requires_grad_(true);
  const at::Tensor out = euler([&](const at::Tensor& x, double) { return (x * weight).to(at::kBFloat16); },
                               std::vector{1.0, 0.0}, number(1).to(at::kBFloat16));
  EXPECT_EQ(out.scalar_type(), at::kFloat);
  EXPECT_FALSE(out.requires_grad());
}

TEST(Euler, RefusesBadSigmasAndShapes) {
  const Velocity same = [](const at::Tensor& x, double) { return x; };
  for (const std::vector<double>& sigmas : {std::vector<double>{},
                                            {0.0},
                                            {1.0, 0.5},
                                            {0.5, 1.0, 0.0},
                                            {1.0, 1.0, 0.0},
                                            {1.0, std::numeric_limits<double>::quiet_NaN(), 0.0}}) {
    EXPECT_THROW(euler(same, sigmas, number(1)), Error);
  }
  EXPECT_THROW(euler([](const at::Tensor& x, double) { return x.squeeze(0); }, std::vector{1.0, 0.0}, number(1)),
               Error);
}

TEST(StartNoise, IsTheKeyedStreamOfItsPrompt) {
  const at::Tensor noise = start_noise(42, 3, 2, 3, 5);
  EXPECT_EQ(noise.sizes(), (std::vector<int64_t>{1, 2, 1, 3, 5}));
  at::Tensor expected = at::empty({30});
  KeyedRng rng(42, RngStream::sample_noise, 3);
  rng.fill_normal({expected.mutable_data_ptr<float>(), 30});
  EXPECT_TRUE(at::equal(noise.flatten(), expected));
  EXPECT_FALSE(at::equal(noise, start_noise(42, 4, 2, 3, 5)));
  EXPECT_FALSE(at::equal(noise, start_noise(43, 3, 2, 3, 5)));
}

class SampleLatents : public testing::Test {
 protected:
  SampleLatents() {
    traits_.latent_channels = 2;
    traits_.tokens = [](int64_t frames, int64_t height, int64_t width) { return frames * height * width; };
    traits_.sigmas = [this](int64_t tokens, int64_t steps) {
      tokens_ = tokens, steps_ = steps;
      return std::vector<double>{1.0, 0.0};
    };
    request_.height = 3, request_.width = 4, request_.steps = 7, request_.guidance = 1, request_.seed = 5,
    request_.index = 2;
  }
  DiffusionTraits traits_;
  SampleRequest request_;
  int64_t tokens_ = 0, steps_ = 0;
  Forward zero_ = [](const NamedTensors& inputs) { return at::zeros_like(inputs.at("latents")); };
};

TEST_F(SampleLatents, AsksForTheScheduleOfItsTokensAndSteps) {
  const at::Tensor out = sample_latents(zero_, &traits_, request_, at::kCPU);
  EXPECT_EQ(tokens_, 12);
  EXPECT_EQ(steps_, 7);
  EXPECT_TRUE(at::equal(out, start_noise(5, 2, 2, 3, 4)));
}

TEST_F(SampleLatents, RefusesWhatItCannotDo) {
  EXPECT_THROW(sample_latents(zero_, nullptr, request_, at::kCPU), Error);
  request_.steps = 0;
  try {
    sample_latents(zero_, &traits_, request_, at::kCPU);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::bad_recipe);
    EXPECT_STREQ(error.what(), "a sample needs at least 1 step and 1x1 latents, not 0 steps at 3x4");
  }
}

TEST(ToRgb8, ClampsAndRounds) {
  at::Tensor image = at::zeros({1, 3, 1, 1, 4});
  const float values[] = {-2.0F, -1.0F, 0.0F, 3.0F};
  for (int64_t i = 0; i < 4; ++i) image.select(4, i).fill_(values[i]);
  const std::vector<at::Tensor> bytes = to_rgb8(image);
  ASSERT_EQ(bytes.size(), 1U);
  EXPECT_EQ(bytes[0].scalar_type(), at::kByte);
  EXPECT_EQ(bytes[0].sizes(), (std::vector<int64_t>{3, 1, 4}));
  const auto* data = bytes[0].const_data_ptr<uint8_t>();
  EXPECT_EQ(std::vector<int>(data, data + 4), (std::vector<int>{0, 0, 128, 255}));
}

TEST(ToRgb8, NonFiniteIsAnError) {
  at::Tensor image = at::zeros({1, 3, 1, 2, 2});
  image.view(-1)[5].fill_(std::numeric_limits<float>::quiet_NaN());
  try {
    to_rgb8(image);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::non_finite);
  }
}

}  // namespace
}  // namespace trainer::sampling
