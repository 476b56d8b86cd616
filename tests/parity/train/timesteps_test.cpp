/// @file Noise levels and loss weights against schedule.json: diffusers' tables, musubi-tuner's and DiffSynth's
/// formulas.
#include <cmath>
#include <flow_matching/timesteps.hpp>
#include <flux2/schedule.hpp>

#include "fixture.hpp"

namespace trainer::parity {
namespace {

using flow_matching::TimestepOptions;

class Timesteps : public ::testing::TestWithParam<std::filesystem::path> {
 protected:
  const nlohmann::json schedule_ = test::file_json(GetParam() / "schedule.json");
};

/// diffusers draws u, takes index floor(1000 u) and counts from noise to data.
TEST_P(Timesteps, TableOfDiffusers) {
  TimestepOptions options;
  options.distribution = "uniform";
  options.resolution_shift = false;
  options.grid = 1000;
  double worst = 0;
  for (const auto& row : schedule_.at("training").at("table")) {
    const double sigma = flow_matching::noise_level(options, 0.5, row.at("u"), 0.0, 0.0);
    EXPECT_NEAR(sigma, row.at("sigma").get<double>(), 1e-6) << row.dump();
    EXPECT_NEAR(sigma * 1000, row.at("timestep").get<double>(), 1e-4) << row.dump();
    for (const char* weighting : {"none", "sigma_sqrt", "cosmap"}) {
      const double expected = row.at("weight").at(weighting);
      worst = std::max(worst, std::abs(flow_matching::loss_weight(weighting, row.at("sigma")) - expected) / expected);
    }
  }
  EXPECT_LE(measured("loss weights", worst), 1e-6);
}

TEST_P(Timesteps, DistributionsOfDiffusers) {
  TimestepOptions options;
  options.distribution = "logit_normal";
  for (const auto& row : schedule_.at("training").at("logit_normal"))
    EXPECT_NEAR(flow_matching::raw_noise_level(options, 0.123, row.at("normal")), row.at("u").get<double>(), 1e-12);
  options.distribution = "mode";
  for (const auto& row : schedule_.at("training").at("mode_1.29"))
    EXPECT_NEAR(1.0 - flow_matching::raw_noise_level(options, row.at("rand"), 0.456), row.at("u").get<double>(), 1e-12);
}

TEST_P(Timesteps, ShiftOfMusubiTuner) {
  TimestepOptions options;
  for (const auto& row : schedule_.at("flux2_shift")) {
    const double mu = flux2::training_mu(row.at("tokens"));
    EXPECT_NEAR(mu, row.at("mu").get<double>(), 1e-12);
    for (std::size_t i = 0; i < row.at("normals").size(); ++i)
      EXPECT_NEAR(flow_matching::noise_level(options, 0.5, 0.5, row.at("normals")[i], mu), row.at("t")[i].get<double>(),
                  1e-12);
  }
}

TEST_P(Timesteps, DiffSynth) {
  const auto& table = schedule_.at("diffsynth");
  TimestepOptions options;
  options.distribution = "uniform";
  for (std::size_t i = 0; i < table.at("index").size(); ++i) {
    const double raw = 1.0 - (1.0 - 0.001) * table.at("index")[i].get<double>() / 999.0;
    const double sigma = flow_matching::noise_level(options, 0.5, 1.0 - raw, 0.0, table.at("mu"));
    EXPECT_NEAR(sigma, table.at("sigma")[i].get<double>(), 1e-12);
    EXPECT_NEAR(flow_matching::loss_weight("gaussian", sigma), table.at("weight")[i].get<double>(), 1e-10);
  }
}

INSTANTIATE_TEST_SUITE_P(Parity, Timesteps, ::testing::ValuesIn(test::parity_dirs()), test::DirName{});

}  // namespace
}  // namespace trainer::parity
