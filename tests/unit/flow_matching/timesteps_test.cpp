/// @file Noise levels and loss weights: edges, shapes of the distributions with fixed keys, closed forms.
#include <gtest/gtest.h>
#include <flow_matching/timesteps.hpp>

#include <algorithm>
#include <base/rng.hpp>
#include <cmath>
#include <functional>
#include <numbers>
#include <support/components.hpp>
#include <vector>

namespace trainer::flow_matching {
namespace {

TimestepOptions uniform_unshifted() {
  TimestepOptions options;
  options.distribution = "uniform";
  options.resolution_shift = false;
  return options;
}

/// Levels of `count` samples, drawn as the objective draws them.
std::vector<double> draw(const TimestepOptions& options, double mu, int count) {
  std::vector<double> levels;
  for (int i = 0; i < count; ++i) {
    const auto key = static_cast<uint64_t>(i);
    KeyedRng uniform(7, RngStream::timestep, 0, key), normal(7, RngStream::timestep_normal, 0, key);
    const double choice = uniform.uniform();
    levels.push_back(noise_level(options, choice, uniform.uniform(), normal.normal(), mu));
  }
  std::sort(levels.begin(), levels.end());
  return levels;
}

/// Largest distance between the empirical distribution of sorted `levels` and `cdf`.
double distance(const std::vector<double>& levels, const std::function<double(double)>& cdf) {
  double worst = 0;
  const auto n = static_cast<double>(levels.size());
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const double expected = cdf(levels[i]);
    worst = std::max(
        {worst, std::abs(static_cast<double>(i) / n - expected), std::abs(static_cast<double>(i + 1) / n - expected)});
  }
  return worst;
}

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }
double logit(double x) { return std::log(x / (1.0 - x)); }
constexpr int kCount = 20000;
constexpr double kLimit = 0.0115;  // Kolmogorov-Smirnov at 1 % for 20000

TEST(NoiseLevel, UniformReachesPureNoiseAndNeverZero) {
  EXPECT_EQ(noise_level(uniform_unshifted(), 0.5, 0.0, 0.0, 0.0), 1.0);
  EXPECT_EQ(noise_level(uniform_unshifted(), 0.5, 0.25, 0.0, 0.0), 0.75);
  EXPECT_EQ(noise_level(uniform_unshifted(), 0.5, std::nextafter(1.0, 0.0), 0.0, 0.0), 1e-5);
}

TEST(NoiseLevel, ExtremeNormalsStayInRange) {
  TimestepOptions options;
  for (const double normal : {-1e3, -40.0, 40.0, 1e3}) {
    const double sigma = noise_level(options, 0.5, 0.5, normal, 1.15);
    EXPECT_EQ(sigma, normal < 0 ? 1e-5 : 1.0) << normal;
  }
}

TEST(NoiseLevel, GridHoldsExactLevels) {
  TimestepOptions options = uniform_unshifted();
  options.grid = 1000;
  for (int i = 0; i < 1000; ++i) {
    const double on_grid = static_cast<double>(i) / 1000.0;
    EXPECT_EQ(noise_level(options, 0.5, on_grid, 0.0, 0.0), static_cast<double>(1000 - i) / 1000.0) << i;
    EXPECT_EQ(noise_level(options, 0.5, on_grid + 0.0007, 0.0, 0.0), static_cast<double>(1000 - i) / 1000.0) << i;
  }
  options.grid = 1;
  EXPECT_EQ(noise_level(options, 0.5, 0.99, 0.0, 0.0), 1.0);
  options.grid = 4;
  EXPECT_EQ(noise_level(options, 0.5, 0.999999, 0.0, 0.0), 0.25) << "never below the lowest level";
}

TEST(NoiseLevel, ShiftIsNoneNumberOrResolution) {
  TimestepOptions options = uniform_unshifted();
  EXPECT_EQ(noise_level(options, 0.5, 0.5, 0.0, 2.0), 0.5) << "none: mu is not used";
  options.shift = 3.0;
  EXPECT_NEAR(noise_level(options, 0.5, 0.5, 0.0, 2.0), 3 * 0.5 / (1 + 2 * 0.5), 1e-15);
  options.resolution_shift = true;
  const double e = std::exp(2.0);
  EXPECT_NEAR(noise_level(options, 0.5, 0.5, 0.0, 2.0), e * 0.5 / (1 + (e - 1) * 0.5), 1e-15);
  EXPECT_EQ(exponential_shift(1.0, 5.0), 1.0);
  EXPECT_EQ(exponential_shift(0.0, 5.0), 0.0);
}

TEST(NoiseLevel, OptionsAreReadFromTheRecipe) {
  using testing::flow_matching_options;
  const TimestepOptions none = timestep_options(flow_matching_options({{"timesteps.shift", {std::string("none")}}}));
  EXPECT_FALSE(none.resolution_shift);
  EXPECT_EQ(none.shift, 1.0);
  const TimestepOptions number = timestep_options(flow_matching_options({{"timesteps.shift", {2.5}}}));
  EXPECT_FALSE(number.resolution_shift);
  EXPECT_EQ(number.shift, 2.5);
  const TimestepOptions whole = timestep_options(flow_matching_options({{"timesteps.shift", {int64_t{3}}}}));
  EXPECT_FALSE(whole.resolution_shift);
  EXPECT_EQ(whole.shift, 3.0);
  const TimestepOptions rest =
      timestep_options(flow_matching_options({{"timesteps.distribution", {std::string("mode")}},
                                              {"timesteps.mean", {0.5}},
                                              {"timesteps.std", {2.0}},
                                              {"timesteps.scale", {0.8}},
                                              {"timesteps.uniform_fraction", {0.1}},
                                              {"timesteps.grid", {int64_t{1000}}}}));
  EXPECT_TRUE(rest.resolution_shift);
  EXPECT_EQ(rest.distribution, "mode");
  EXPECT_EQ(rest.mean, 0.5);
  EXPECT_EQ(rest.std, 2.0);
  EXPECT_EQ(rest.scale, 0.8);
  EXPECT_EQ(rest.uniform_fraction, 0.1);
  EXPECT_EQ(rest.grid, 1000);
}

TEST(NoiseLevel, UnknownNamesAreErrors) {
  TimestepOptions options;
  options.distribution = "gamma";
  EXPECT_THROW((void)raw_noise_level(options, 0.5, 0.5), Error);
  EXPECT_THROW((void)loss_weight("gamma", 0.5), Error);
}

TEST(NoiseDistribution, Uniform) {
  const std::vector<double> levels = draw(uniform_unshifted(), 0, kCount);
  EXPECT_LE(distance(levels, [](double x) { return x; }), kLimit);
}

TEST(NoiseDistribution, LogitNormalWithMeanAndSpread) {
  TimestepOptions options;
  options.resolution_shift = false;
  options.mean = 0.7;
  options.std = 0.5;
  const std::vector<double> levels = draw(options, 0, kCount);
  EXPECT_LE(distance(levels, [](double x) { return normal_cdf((logit(x) - 0.7) / 0.5); }), kLimit);
}

/// An exponential shift of a logit-normal only moves its mean by mu.
TEST(NoiseDistribution, ResolutionShiftMovesTheLogit) {
  const std::vector<double> levels = draw({}, 0.63, kCount);
  EXPECT_LE(distance(levels, [](double x) { return normal_cdf(logit(std::min(x, 1 - 1e-15)) - 0.63); }), kLimit);
}

/// sigma = f(u) with f increasing, so P(sigma <= f(u)) = u.
TEST(NoiseDistribution, ModeIsMonotonicAndMatchesItsFormula) {
  TimestepOptions options = uniform_unshifted();
  options.distribution = "mode";
  double before = -1;
  for (int i = 0; i <= 100; ++i) {
    const double level = raw_noise_level(options, i / 100.0, 0);
    EXPECT_GT(level, before);
    before = level;
  }
  EXPECT_NEAR(raw_noise_level(options, 0, 0), 0, 1e-15);
  EXPECT_NEAR(raw_noise_level(options, 1, 0), 1, 1e-15);
  const std::vector<double> levels = draw(options, 0, kCount);
  EXPECT_LE(distance(levels,
                     [&](double x) {
                       double low = 0, high = 1;
                       for (int i = 0; i < 50; ++i)
                         (raw_noise_level(options, (low + high) / 2, 0) < x ? low : high) = (low + high) / 2;
                       return low;
                     }),
            kLimit);
}

TEST(NoiseDistribution, UniformFractionMixes) {
  TimestepOptions options;
  options.resolution_shift = false;
  options.mean = 3.0;
  options.std = 0.1;  // nearly all near 0.95
  options.uniform_fraction = 0.25;
  const std::vector<double> levels = draw(options, 0, kCount);
  EXPECT_LE(
      distance(levels,
               [](double x) { return 0.25 * x + 0.75 * normal_cdf((logit(std::min(x, 1 - 1e-15)) - 3.0) / 0.1); }),
      kLimit);
  options.uniform_fraction = 1.0;
  EXPECT_LE(distance(draw(options, 0.63, kCount), [](double x) { return x; }), kLimit) << "unshifted";
}

TEST(LossWeight, ClosedForms) {
  EXPECT_EQ(loss_weight("none", 0.3), 1.0);
  EXPECT_EQ(loss_weight("sigma_sqrt", 0.5), 4.0);
  EXPECT_NEAR(loss_weight("cosmap", 0.5), 4.0 / std::numbers::pi, 1e-15);
  EXPECT_NEAR(loss_weight("cosmap", 1.0), 2.0 / std::numbers::pi, 1e-15);
}

TEST(LossWeight, GaussianHasItsPeakInTheMiddleZeroEndsAndMeanOne) {
  EXPECT_NEAR(loss_weight("gaussian", 1.0), 0.0, 1e-12);
  EXPECT_NEAR(loss_weight("gaussian", 0.0), 0.0, 1e-12);
  EXPECT_GT(loss_weight("gaussian", 0.5), loss_weight("gaussian", 0.49));
  EXPECT_GT(loss_weight("gaussian", 0.5), loss_weight("gaussian", 0.51));
  double sum = 0;
  for (int i = 0; i < 1000; ++i)
    sum += loss_weight("gaussian", exponential_shift(1.0 - 0.999 * static_cast<double>(i) / 999.0, 0.8));
  EXPECT_NEAR(sum / 1000, 1.0, 1e-12);
}

}  // namespace
}  // namespace trainer::flow_matching
