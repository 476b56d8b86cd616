/// @file The training step: micro-batches, strategies, and what stops it before the weights change.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <trainer/sdk/error.hpp>

#include "toy_run.hpp"

namespace trainer::execution {
namespace {

/// Adds up, for each parameter, the gradients that a step's micro-batches bring.
NamedTensors sum_of_gradients(ToyRun& run) {
  NamedTensors sums;
  for (Parameter* parameter : run.trained)
    parameter->value().register_hook([&sums, parameter](const at::Tensor& grad) {
      at::Tensor& sum = sums[parameter->name()];
      sum = sum.defined() ? sum + grad : grad.clone();
    });
  run.trainer->step();
  return sums;
}

TEST(Trainer, MicroBatchesChangeRoundingOnly) {
  ToyRun whole({.per_step = 3, .micro = 3}), parts({.per_step = 3, .micro = 1});
  for (ToyRun* run : {&whole, &parts}) run->train_to(4);  // until B is no longer zero
  whole.objective.times.clear(), parts.objective.times.clear();
  const NamedTensors one = sum_of_gradients(whole), two = sum_of_gradients(parts);
  EXPECT_EQ(one.size(), whole.trained.size());
  for (const auto& [name, grad] : one) EXPECT_LE(test::max_error(two.at(name), grad), 2e-5) << name;
  EXPECT_EQ(whole.objective.times, parts.objective.times) << "the same noise levels, to the bit";
}

TEST(Trainer, MicroBatchesSeeTheSameSamplesAndLosses) {
  ToyRun whole({.per_step = 3, .micro = 3}), parts({.per_step = 3, .micro = 1});
  const std::vector<double> one = whole.train_to(6), two = parts.train_to(6);
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i] / two[i], 1, 2e-6) << "step " << i;
  EXPECT_EQ(whole.objective.keys, parts.objective.keys);
  EXPECT_EQ(whole.objective.keys.size(), 18U);
  EXPECT_EQ(whole.objective.keys.back(), 17U);
}

TEST(Trainer, RecomputingChangesNoBit) {
  for (const bool full : {false, true}) {
    ToyRun plain({.full = full}), recomputed({.recompute = true, .full = full});
    EXPECT_EQ(plain.train_to(5), recomputed.train_to(5));
    for (const auto& [name, value] : plain.values())
      EXPECT_TRUE(test::same_bits(value, recomputed.values().at(name))) << name;
    EXPECT_EQ(recomputed.trainer->recompute_state().signatures.size(), recomputed.model.blocks().size());
  }
}

TEST(Trainer, ReportsAndSchedule) {
  ToyRun run;
  std::vector<StepReport> reports;
  run.trainer->fit(4, [&](const StepReport& report) {
    reports.push_back(report);
    return report.step < 3;  // stops early
  });
  ASSERT_EQ(reports.size(), 3U);
  EXPECT_EQ(run.trainer->steps_done(), 3);
  EXPECT_EQ(reports[0].step, 1);
  EXPECT_DOUBLE_EQ(reports[0].learning_rate, 0.5e-2) << "first of two warm-up steps";
  EXPECT_DOUBLE_EQ(reports[2].learning_rate, 1e-2);
  EXPECT_GT(reports[0].grad_norm, 0);
  run.trainer->fit(3, [](const StepReport&) {
    ADD_FAILURE() << "nothing is left to do";
    return false;
  });
}

TEST(Trainer, TrainsEveryParameterWithoutAnAdapter) {
  ToyRun run({.per_step = 6, .micro = 3, .full = true});
  const NamedTensors before = run.values();
  EXPECT_EQ(before.size(), 13U);
  const std::vector<double> losses = run.train_to(20);
  for (const auto& [name, value] : run.values()) EXPECT_GT(test::max_error(value, before.at(name)), 1e-2) << name;
  const double first = std::accumulate(losses.begin(), losses.begin() + 5, 0.0);
  const double last = std::accumulate(losses.end() - 5, losses.end(), 0.0);
  EXPECT_LT(last, 0.95 * first);
}

/// Runs one step that must stop, and checks that nothing changed by it.
std::string stopped(ToyRun& run) {
  const NamedTensors before = run.values();
  const int64_t steps = run.trainer->steps_done();
  std::string message = "no error";
  try {
    run.trainer->step();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::non_finite);
    message = error.what();
  }
  EXPECT_EQ(run.trainer->steps_done(), steps);
  for (const auto& [name, value] : before) EXPECT_TRUE(test::same_bits(value, run.values().at(name))) << name;
  for (const auto& [name, state] : run.optimizer->state()) {
    if (!name.ends_with(".step")) continue;
    EXPECT_EQ(state.item<double>(), static_cast<double>(steps)) << name;
  }
  EXPECT_EQ(run.ema->state().at("ema.updates").item<int64_t>(), steps);
  return message;
}

TEST(NonFinite, LossNamesStepFilesTimestepAndInput) {
  ToyRun run({.per_step = 4, .micro = 2});
  run.data.poisoned = 10;  // first sample of the second micro-batch of the third step
  run.train_to(2);
  run.objective.times.clear();
  const std::string message = stopped(run);
  const std::string times = std::to_string(run.objective.times[2]) + ", " + std::to_string(run.objective.times[3]);
  EXPECT_EQ(message,
            "step 3: the loss became nan; first non-finite value: the input \"latents\"; files: picture-10.png, "
            "picture-11.png; timesteps: " +
                times +
                ". The weights were not changed by this step, and checkpoints are from before it. A lower optimizer.lr "
                "usually "
                "helps.");
}

TEST(NonFinite, LossNamesTheModule) {
  const auto named = [](const std::string& weight, bool recompute) {
    ToyHow how{.recompute = recompute};
    how.weights.at(weight).fill_(std::numeric_limits<float>::infinity());
    ToyRun run(how);
    const std::string message = stopped(run);
    const std::size_t begin = message.find("first non-finite value: ") + 24;
    return message.substr(begin, message.find("; files") - begin);
  };
  for (const bool recompute : {false, true}) {
    EXPECT_EQ(named("embed.weight", recompute), "the prologue (embedders and modulation)");
    EXPECT_EQ(named("block.0.down.weight", recompute), "block \"block.0\"");
    EXPECT_EQ(named("block.1.down.weight", recompute), "block \"block.1\"");
    EXPECT_EQ(named("norm.weight", recompute), "the epilogue (final norm and projection)");
  }
}

TEST(NonFinite, LossItself) {
  ToyHow how;
  how.weights.at("head.weight").fill_(1e30F);  // the prediction is finite, its square is not
  ToyRun run(how);
  const std::string message = stopped(run);
  EXPECT_NE(message.find("the loss became inf; first non-finite value: the loss itself;"), std::string::npos)
      << message;
}

TEST(NonFinite, GradientNamesTheParameter) {
  ToyRun run;
  run.train_to(1);
  run.trained[3]->value().register_hook(
      [](const at::Tensor& grad) { return at::full_like(grad, std::numeric_limits<double>::infinity()); });
  EXPECT_EQ(stopped(run), "step 2: the gradient became non-finite; first in \"" + run.trained[3]->name() +
                              "\"; files: picture-3.png, picture-4.png, picture-5.png; timesteps: 0.765427, 0.929112, "
                              "0.845634. The weights were not "
                              "changed by "
                              "this step, and checkpoints are from before it.");
}

TEST(NonFinite, NormThatOverflows) {
  ToyRun run;
  run.trained[3]->value().register_hook([](const at::Tensor& grad) { return at::full_like(grad, 1e30); });
  EXPECT_EQ(stopped(run),
            "step 1: the gradient became non-finite; every element is finite, but the norm is too large for "
            "fp32; files: picture-0.png, picture-1.png, picture-2.png; timesteps: 0.551461, 0.590685, 0.656467. The "
            "weights were not changed by this "
            "step, and checkpoints are from before it.");
}

}  // namespace
}  // namespace trainer::execution
