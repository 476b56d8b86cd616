/// @file About 100 million parameters, 1,024 tokens: what is held is exact, the peak within 5 %. Each cell trains two
/// real steps, so this takes minutes; every way to checkpoint is there once, and each other choice with one of them.
#include <gtest/gtest.h>

#include <cstdio>

#include "cells.hpp"

namespace trainer::memory {
namespace {

std::vector<Cell> cells() {
  return {{"none", false, at::kFloat},
          {"full", false, at::kFloat},
          {"full+elide", false, at::kBFloat16},
          {"attention", false, at::kFloat},
          {"every_second_matmul", true, at::kBFloat16},
          {"matmul", true, at::kFloat},
          {"full", false, at::kBFloat16},
          {"full", true, at::kBFloat16, false, 3},
          {"full", false, at::kFloat, true},
          {"none", true, at::kBFloat16, false, 1, true}};
}

class HundredMillion : public testing::TestWithParam<Cell> {};

TEST_P(HundredMillion, IsForetold) {
  static const Subject subject = hundred_million();
  const Cell cell = GetParam();
  // 1,024 tokens in all, a third of them for each of three micro-batches.
  const Size size = cell.micro_batches == 1 ? Size{24, 32, 256, 1} : Size{16, 16, 85, 1};
  const Measured real = measure_real(subject, cell, size), dry = measure_dry(subject, cell, size);
  EXPECT_EQ(dry.weights, real.weights);
  EXPECT_EQ(dry.trained, real.trained);
  EXPECT_EQ(dry.step.optimizer, real.step.optimizer);
  // The count of updates, one integer, is on the host, which here is the device, too.
  const int64_t count = real.step.ema > 0 ? static_cast<int64_t>(sizeof(int64_t)) : 0;
  EXPECT_EQ(dry.step.ema + count, real.step.ema);
  EXPECT_EQ(dry.step.gradients, real.step.gradients);
  EXPECT_EQ(dry.step.kept, real.step.kept);
  const double ratio = static_cast<double>(dry.step.peak) / static_cast<double>(real.step.peak);
  std::printf("%s: kept %ld, peak %ld, foretold %ld (%.4f)\n", text_of(cell).c_str(), static_cast<long>(real.step.kept),
              static_cast<long>(real.step.peak), static_cast<long>(dry.step.peak), ratio);
  EXPECT_NEAR(ratio, 1.0, 0.05);
  EXPECT_LE(static_cast<double>(real.first_peak),
            1.05 * static_cast<double>(dry.step.peak + first_step_extra(subject, cell, size)));
}

INSTANTIATE_TEST_SUITE_P(Cells, HundredMillion, testing::ValuesIn(cells()));

}  // namespace
}  // namespace trainer::memory
