/// @file Where a chain is cut.
#include <gtest/gtest.h>

#include "cut.hpp"

namespace trainer::split {
namespace {

using Starts = std::vector<std::size_t>;

Chain chain_of(std::vector<double> work, std::vector<int64_t> bytes = {}) {
  Chain chain;
  for (std::size_t i = 0; i < work.size(); ++i)
    chain.blocks.push_back({work[i], bytes.empty() ? static_cast<int64_t>(work[i]) : bytes[i]});
  return chain;
}
Devices even(std::size_t count) { return {std::vector<double>(count, 1), {}}; }

TEST(Cut, SharesEvenly) {
  const Chain chain = chain_of(std::vector<double>(56, 1));
  EXPECT_EQ(best_cut(chain, even(2), Balance::compute), (Starts{0, 28}));
  EXPECT_EQ(best_cut(chain, even(4), Balance::compute), (Starts{0, 14, 28, 42}));
  EXPECT_EQ(best_cut(chain, {{2, 1}, {}}, Balance::compute), (Starts{0, 37}));
}

TEST(Cut, CountsWhatStaysAtTheEnds) {
  Chain chain = chain_of({1, 1, 1, 1});
  chain.first = {2, 0};
  EXPECT_EQ(best_cut(chain, even(2), Balance::compute), (Starts{0, 1}));
  chain.last = {4, 0};
  EXPECT_EQ(best_cut(chain, even(2), Balance::compute), (Starts{0, 3}));
}

TEST(Cut, BalancesWorkOrMemory) {
  const Chain chain = chain_of({1, 1, 1, 1, 1, 1}, {3, 3, 1, 1, 1, 1});
  EXPECT_EQ(best_cut(chain, even(2), Balance::compute), (Starts{0, 3}));
  EXPECT_EQ(best_cut(chain, even(2), Balance::memory), (Starts{0, 2}));
}

TEST(Cut, KeepsWithinBudgets) {
  const Chain chain = chain_of(std::vector<double>(6, 1), std::vector<int64_t>(6, 10));
  EXPECT_EQ(best_cut(chain, {{1, 1}, {60, 20}}, Balance::compute), (Starts{0, 4}));
  EXPECT_EQ(best_cut(chain, {{1, 1}, {20, 60}}, Balance::compute), (Starts{0, 2}));
  EXPECT_EQ(best_cut(chain, {{1, 1}, {30, 30}}, Balance::compute), (Starts{0, 3}));
  EXPECT_FALSE(best_cut(chain, {{1, 1}, {30, 29}}, Balance::compute));
  EXPECT_FALSE(best_cut(chain, even(7), Balance::compute)) << "a device without a block";
}

/// Against every cut there is.
TEST(Cut, IsTheBestOfAll) {
  uint32_t state = 1;
  const auto next = [&state](uint32_t bound) {
    state = state * 1664525U + 1013904223U;
    return (state >> 16) % bound;
  };
  for (int round = 0; round < 200; ++round) {
    Chain chain;
    for (std::size_t i = 0, count = 3 + next(6); i < count; ++i)
      chain.blocks.push_back({static_cast<double>(1 + next(9)), 1 + next(9)});
    chain.first = {static_cast<double>(next(4)), next(9)};
    const Devices devices{{1.0 + next(3), 1.0 + next(3), 1.0 + next(3)}, {}};
    double best = 1e9;
    for (std::size_t a = 1; a < chain.blocks.size(); ++a)
      for (std::size_t b = a + 1; b < chain.blocks.size(); ++b) {
        const auto sums = stages(chain, {0, a, b});
        double largest = 0;
        for (std::size_t d = 0; d < 3; ++d) largest = std::max(largest, sums[d].work / devices.weights[d]);
        best = std::min(best, largest);
      }
    const auto starts = best_cut(chain, devices, Balance::compute);
    ASSERT_TRUE(starts);
    double got = 0;
    const auto sums = stages(chain, *starts);
    for (std::size_t d = 0; d < 3; ++d) got = std::max(got, sums[d].work / devices.weights[d]);
    EXPECT_DOUBLE_EQ(got, best) << round;
  }
}

}  // namespace
}  // namespace trainer::split
