/// @file Updates inside backward: the same results to the bit, never all gradients at once, and what is left when a
/// value is not finite.
#include <ATen/ops/full_like.h>
#include <gtest/gtest.h>

#include <execution/forward.hpp>
#include <planner/byte_counter.hpp>
#include <trainer/sdk/error.hpp>

#include <limits>

#include "toy_run.hpp"

namespace trainer::execution {
namespace {

ToyHow how(bool fused, bool full, bool recompute = false) {
  return {.per_step = 3, .micro = 3, .recompute = recompute, .full = full, .fused = fused, .max_grad_norm = 0};
}

/// Everything that a checkpoint holds.
NamedTensors state_of(ToyRun& run) { return checkpoint::capture(run.live(), {}).tensors; }
void expect_same(const NamedTensors& a, const NamedTensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(test::same_bits(tensor, b.at(name))) << name;
}

std::string error_of_step(ToyRun& run, ExitCode code) {
  try {
    run.trainer->step();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), code);
    return error.what();
  }
  return "no error";
}

TEST(FusedBackward, ParametersMomentsAndAverageEqualTheUpdateAfterBackward) {
  for (const bool full : {false, true})
    for (const bool recompute : {false, true}) {
      ToyRun after(how(false, full, recompute)), inside(how(true, full, recompute));
      for (int i = 0; i < 5; ++i) {
        const StepReport a = after.trainer->step(), b = inside.trainer->step();
        EXPECT_EQ(a.loss, b.loss);
        EXPECT_EQ(a.grad_norm, b.grad_norm);
        for (Parameter* parameter : inside.trained) EXPECT_FALSE(parameter->value().grad().defined());
      }
      expect_same(state_of(after), state_of(inside));
    }
}

/// Half a run each way, in both orders: checkpoints do not depend on it.
TEST(FusedBackward, GoesOnFromACheckpointOfEitherKind) {
  ToyRun whole(how(false, true));
  whole.train_to(6);
  for (const bool first_fused : {false, true}) {
    ToyRun first(how(first_fused, true));
    first.train_to(3);
    ToyRun second(how(!first_fused, true), 3);
    checkpoint::Live live = second.live();
    checkpoint::Loaded loaded;
    loaded.content = checkpoint::capture(first.live(), {});
    checkpoint::restore(loaded, live);
    second.train_to(6);
    expect_same(state_of(whole), state_of(second));
  }
}

/// A parameter that backward does not reach is updated with zeros, as after backward.
TEST(FusedBackward, ParameterWithoutGradient) {
  ToyRun after(how(false, true)), inside(how(true, true));
  for (ToyRun* run : {&after, &inside}) {
    run->train_to(2);                                     // its moments are not zero
    run->trained.front()->value().requires_grad_(false);  // as if the loss did not depend on it
    const at::Tensor before = run->trained.front()->value().clone();
    run->train_to(4);
    EXPECT_FALSE(test::same_bits(before, run->trained.front()->value())) << "its moments move it on";
  }
  expect_same(state_of(after), state_of(inside));
}

/// Hooks are gone with their owner.
TEST(FusedBackward, LeavesNoHooks) {
  ToyRun run(how(true, true));
  run.train_to(1);
  run.fused.reset();
  const at::Tensor& value = run.trained.front()->value();
  const at::Tensor before = value.detach().clone();
  value.sum().backward();
  EXPECT_TRUE(value.grad().defined());
  EXPECT_TRUE(test::same_bits(before, value));
}

/// Bytes above those at the step's begin that its backward needs at most, besides what the forward keeps.
int64_t peak_of_gradients(bool fused, bool recompute) {
  ToyHow wide = how(fused, true, recompute);
  wide.per_step = wide.micro = 1;
  wide.ema = 0;
  wide.sizes.width = 256;
  wide.sizes.blocks = 8;
  wide.weights = testing::toy_weights(wide.sizes);
  planner::install_byte_counter();
  ToyRun run(wide);
  run.train_to(2);  // the verifying first run is not what is measured
  const Example example = run.objective.prepare(run.data.batch(2, 0), run.model, run.random);
  const at::Tensor graph =
      forward_loss(run.model, run.objective, example, run.memory, run.trainer->recompute_state(), 0);
  const planner::PeakMark backward(at::kCPU);
  if (fused) run.fused->begin(1e-2);
  graph.backward();
  if (fused) run.fused->finish();
  return backward.above();
}

TEST(FusedBackward, GradientsNeverExistAllAtOnce) {
  constexpr int64_t kWidth = 256, kBlocks = 8;
  constexpr int64_t kLargest = 2 * kWidth * kWidth * 4;                 // up.weight, bytes
  constexpr int64_t kBlock = 2 * kLargest + (2 * kWidth + kWidth) * 4;  // up, down, bias, scale
  for (const bool recompute : {false, true}) {
    EXPECT_GT(peak_of_gradients(false, recompute), (kBlocks - 1) * kBlock) << "what this saves";
    EXPECT_LT(peak_of_gradients(true, recompute), kLargest + kBlock) << (recompute ? "recomputed" : "plain");
  }
}

TEST(FusedBackwardNonFinite, LossChangesNothing) {
  ToyHow options = how(true, true);
  options.weights.at("head.weight").fill_(1e30F);  // prediction and gradient are finite, the loss is not
  ToyRun run(options);
  const NamedTensors before = state_of(run);
  for (int i = 0; i < 2; ++i) {  // nothing is mixed: it may be tried again
    const std::string message = error_of_step(run, ExitCode::non_finite);
    EXPECT_NE(message.find("the loss became inf; first non-finite value: the loss itself;"), std::string::npos);
    EXPECT_NE(message.find("The weights were not changed by this step"), std::string::npos) << message;
  }
  expect_same(before, state_of(run));
}

/// The bad gradient and all after it change nothing; those before it have. The run cannot go on from there.
TEST(FusedBackwardNonFinite, GradientStopsTheRunForGood) {
  for (const bool recompute : {false, true}) {
    ToyRun run(how(true, true, recompute));
    run.train_to(1);
    Parameter* const bad = run.trained.front();  // of the prologue: nearly the last one in backward
    const unsigned hook = bad->value().register_hook(
        [](const at::Tensor& grad) { return at::full_like(grad, std::numeric_limits<double>::infinity()); });
    const NamedTensors before = run.values();
    const std::string message = error_of_step(run, ExitCode::non_finite);
    EXPECT_NE(message.find("the gradient became non-finite; first in \"" + bad->name() + "\""), std::string::npos)
        << message;
    EXPECT_NE(message.find("some weights were updated before this was seen; those in memory are lost, and checkpoints "
                           "are from before the step"),
              std::string::npos)
        << message;
    EXPECT_EQ(run.trainer->steps_done(), 1);
    EXPECT_EQ(run.ema->state().at("ema.updates").item<int64_t>(), 1);
    int changed = 0;
    for (const auto& [name, value] : run.values()) {
      EXPECT_TRUE(std::isfinite(value.sum().item<double>())) << name;
      changed += test::same_bits(value, before.at(name)) ? 0 : 1;
    }
    EXPECT_TRUE(test::same_bits(bad->value(), before.at(bad->name())));
    EXPECT_GT(changed, 0);
    bad->value().remove_hook(hook);
    EXPECT_NE(error_of_step(run, ExitCode::failed).find("some weights are from before it, some from after"),
              std::string::npos);
  }
}

/// The first gradient of all is bad: nothing changed, and the message says so.
TEST(FusedBackwardNonFinite, FirstGradient) {
  ToyRun run(how(true, true));
  for (Parameter* parameter : run.trained)
    parameter->value().register_hook(
        [](const at::Tensor& grad) { return at::full_like(grad, std::numeric_limits<double>::quiet_NaN()); });
  const NamedTensors before = state_of(run);
  EXPECT_NE(error_of_step(run, ExitCode::non_finite).find("The weights were not changed by this step"),
            std::string::npos);
  expect_same(before, state_of(run));
}

TEST(FusedBackward, RefusesASecondGradientAndOneOutsideAStep) {
  ToyRun run(how(true, true));
  const at::Tensor& value = run.trained.front()->value();
  const auto message = [&] {
    try {
      value.sum().backward();
    } catch (const Error& error) {
      value.mutable_grad().reset();
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(message().find("which optimizer.fused_backward cannot do"), std::string::npos);
  run.fused->begin(1e-3);
  EXPECT_EQ(message(), "no error");
  EXPECT_NE(message().find("got a second gradient after its update in this step"), std::string::npos);
}

}  // namespace
}  // namespace trainer::execution
