/// @file Every cell on the miniatures: what is held is exact, the peak within 10 %.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "cells.hpp"

namespace trainer::memory {
namespace {

class Miniature : public testing::TestWithParam<Cell> {};

TEST_P(Miniature, IsForetold) {
  for (const Subject& subject : miniatures()) {
    const Size size;
    const Measured real = measure_real(subject, GetParam(), size), dry = measure_dry(subject, GetParam(), size);
    SCOPED_TRACE(subject.name);
    EXPECT_EQ(dry.weights, real.weights);
    EXPECT_EQ(dry.trained, real.trained);
    EXPECT_EQ(dry.step.optimizer, real.step.optimizer);
    EXPECT_EQ(dry.step.gradients, real.step.gradients);
    EXPECT_EQ(dry.step.kept, real.step.kept);
    const double ratio = static_cast<double>(dry.step.peak) / static_cast<double>(real.step.peak);
    std::printf("%s %s: kept %ld, peak %ld, foretold %ld (%.4f)\n", subject.name.c_str(), text_of(GetParam()).c_str(),
                static_cast<long>(real.step.kept), static_cast<long>(real.step.peak), static_cast<long>(dry.step.peak),
                ratio);
    EXPECT_NEAR(ratio, 1.0, 0.10);
    // The first step is dearer, by no more than is foretold, and by not much less.
    const double first = static_cast<double>(real.first_peak) / static_cast<double>(dry.first_peak);
    std::printf("  first step: peak %ld of at most %ld (%.4f)\n", static_cast<long>(real.first_peak),
                static_cast<long>(dry.first_peak), first);
    EXPECT_LE(first, 1.0);
    EXPECT_GE(first, 0.75);
  }
}

INSTANTIATE_TEST_SUITE_P(Cells, Miniature, testing::ValuesIn(every_cell()));

}  // namespace
}  // namespace trainer::memory
