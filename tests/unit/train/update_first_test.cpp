/// @file Steps whose update is on its way before their numbers are read, and batches that are made ahead: the same
/// bits, and what is not finite stops the run as it does otherwise.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <trainer/sdk/error.hpp>

#include "toy_run.hpp"

namespace trainer::execution {
namespace {

void expect_same(const NamedTensors& got, const NamedTensors& expected) {
  EXPECT_EQ(got.size(), expected.size());
  for (const auto& [name, value] : expected) EXPECT_TRUE(test::same_bits(got.at(name), value)) << name;
}

NamedTensors copied(const NamedTensors& tensors) {
  NamedTensors copy;
  for (const auto& [name, tensor] : tensors) copy[name] = tensor.detach().clone();
  return copy;
}

TEST(UpdateFirst, ChangesNoBit) {
  for (const double max_grad_norm : {1e-2, 0.0})
    for (const int64_t micro : {1, 3}) {
      ToyRun plain({.micro = micro, .max_grad_norm = max_grad_norm});
      ToyRun first({.micro = micro, .update_first = true, .max_grad_norm = max_grad_norm});
      EXPECT_EQ(first.train_to(6), plain.train_to(6));
      expect_same(first.values(), plain.values());
      expect_same(first.optimizer->state(), plain.optimizer->state());
      expect_same(first.ema->state(), plain.ema->state());
    }
}

/// In the same words, and with nothing changed by the step that is none.
TEST(UpdateFirst, WhatIsNotFiniteStopsTheRunAsEver) {
  const auto stopped = [](ToyRun& run) {
    try {
      run.trainer->step();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::non_finite);
      return std::string(error.what());
    }
    return std::string("not stopped");
  };
  for (const bool in_gradient : {false, true}) {
    ToyRun plain, first({.update_first = true});
    NamedTensors before;
    for (ToyRun* run : {&plain, &first}) {
      run->data.poisoned = in_gradient ? -1 : 7;  // of the third step
      run->train_to(2);
      if (in_gradient)
        run->trained[1]->value().register_hook(
            [](const at::Tensor& grad) { return grad * std::numeric_limits<float>::quiet_NaN(); });
      before = copied(run->values());
    }
    const NamedTensors state = copied(first.optimizer->state()), ema = copied(first.ema->state());
    const std::string message = stopped(plain);
    EXPECT_NE(message.find(in_gradient ? "first in \"" + plain.trained[1]->name() : "picture-7.png"), message.npos)
        << message;
    EXPECT_EQ(stopped(first), message);
    expect_same(first.values(), before);
    expect_same(first.optimizer->state(), state);
    expect_same(first.ema->state(), ema);
    EXPECT_EQ(first.trainer->steps_done(), 2);
  }
}

/// What was read or prepared ahead when a run stopped is in no checkpoint, and missing in none.
TEST(UpdateFirst, GoesOnFromACheckpointToTheBit) {
  ToyRun whole({.update_first = true});
  whole.train_to(6);
  for (const bool before : {false, true})
    for (const bool after : {false, true}) {
      ToyRun first({.update_first = before});
      first.train_to(3);
      checkpoint::Loaded loaded;
      loaded.content = checkpoint::capture(first.live(), {});
      ToyRun second({.update_first = after}, 3);
      checkpoint::Live live = second.live();
      checkpoint::restore(loaded, live);
      second.train_to(6);
      expect_same(checkpoint::capture(second.live(), {}).tensors, checkpoint::capture(whole.live(), {}).tensors);
    }
}

TEST(UpdateFirst, ABatchThatCannotBeReadStopsTheStepThatWantsIt) {
  for (const bool update_first : {false, true})
    for (const int64_t damaged : {6, 8}) {  // the first and the last micro-batch of the third step
      ToyRun run({.update_first = update_first}), sound;
      run.data.damaged = damaged;
      EXPECT_EQ(run.train_to(2), sound.train_to(2));
      for (int attempt = 0; attempt < 2; ++attempt) try {
          run.trainer->step();
          FAIL();
        } catch (const Error& error) {
          EXPECT_EQ(error.exit_code(), ExitCode::bad_input);
          EXPECT_STREQ(error.what(), "entry is damaged");
        }
      EXPECT_EQ(run.trainer->steps_done(), 2);
      expect_same(run.values(), sound.values());
      run.data.damaged = -1;
      EXPECT_EQ(run.train_to(4), sound.train_to(4));
    }
}

TEST(AheadBatches, AreTheSourcesAndFailWhereTheyAreWanted) {
  ToyData data(4, 2), read(4, 2);
  read.damaged = 10;  // of (2, 1)
  preparation::AheadBatches ahead(read, /*pin=*/false);
  for (const auto& [step, micro] : {std::pair{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {0, 1}, {2, 0}}) {
    const Batch got = ahead.batch(step, micro), expected = data.batch(step, micro);
    EXPECT_TRUE(test::same_bits(got.latents, expected.latents));
    EXPECT_EQ(got.sample_keys, expected.sample_keys);
    EXPECT_EQ(ahead.files(step, micro), data.files(step, micro));
  }
  try {
    ahead.batch(2, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::bad_input);
    EXPECT_STREQ(error.what(), "entry is damaged");
  }
  EXPECT_EQ(ahead.batch(3, 0).step, 3U);
}

}  // namespace
}  // namespace trainer::execution
