/// @file The search for ways to run a chain within a budget: against all combinations on small chains, its properties
/// on large ones, and PyTorch's tests of the same problem.
#include <gtest/gtest.h>
#include <planner/budget.hpp>

#include <algorithm>
#include <chrono>
#include <random>

namespace trainer::planner {
namespace {

/// The cheapest of all combinations; work -1: none fits.
int64_t brute_force(const Chain& chain, int64_t budget) {
  int64_t best = -1;
  std::vector<std::size_t> ways(chain.blocks.size(), 0);
  while (true) {
    const Choices choices = evaluate(chain, ways);
    if (choices.peak <= budget && (best < 0 || choices.work < best)) best = choices.work;
    std::size_t i = 0;
    while (i < ways.size() && ++ways[i] == chain.blocks[i].size()) ways[i++] = 0;
    if (i == ways.size()) return best;
  }
}

class Chains {
 public:
  explicit Chains(unsigned seed) : random_(seed) {}
  int64_t number(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  Way way(int64_t most) {
    Way way{number(0, most), number(0, most), number(0, 2 * most), number(0, most)};
    if (number(0, 3) == 0) way.work = 0;
    return way;
  }
  Chain chain(int64_t blocks, int64_t most) {
    Chain chain;
    chain.fixed = number(0, most);
    chain.tail_peak = number(0, most);
    std::vector<std::vector<Way>> types(static_cast<std::size_t>(number(1, 3)));
    for (auto& type : types)
      for (int64_t i = number(1, 4); i > 0; --i) type.push_back(way(most));
    for (int64_t i = 0; i < blocks; ++i)
      chain.blocks.push_back(types[static_cast<std::size_t>(number(0, static_cast<int64_t>(types.size()) - 1))]);
    return chain;
  }

 private:
  std::mt19937 random_;
};

/// What is kept costs nothing, what is not kept is computed again.
Chain keep_or_recompute(const std::vector<int64_t>& bytes, const std::vector<int64_t>& work) {
  Chain chain;
  for (std::size_t i = 0; i < bytes.size(); ++i) chain.blocks.push_back({{bytes[i], 0, 0, 0}, {0, 0, 0, work[i]}});
  return chain;
}

TEST(MemoryBudget, EqualsTheBestOfAllCombinations) {
  int fitting = 0;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    Chains chains(seed);
    const Chain chain = chains.chain(chains.number(1, 5), seed % 2 == 0 ? 9 : 1000);
    const int64_t smallest = smallest_budget(chain);
    for (int i = 0; i < 4; ++i) {
      const int64_t budget = i == 0 ? smallest : i == 1 ? smallest - 1 : chains.number(0, 3 * smallest + 1);
      const int64_t best = brute_force(chain, budget);
      const auto found = cheapest(chain, budget);
      ASSERT_EQ(found.has_value(), best >= 0) << "seed " << seed << " budget " << budget;
      EXPECT_EQ(found.has_value(), budget >= smallest) << "seed " << seed;
      if (!found) continue;
      ++fitting;
      EXPECT_EQ(found->work, best) << "seed " << seed << " budget " << budget;
      EXPECT_LE(found->peak, budget);
      EXPECT_EQ(found->quantum, 1);
      const Choices again = evaluate(chain, found->ways);
      EXPECT_EQ(again.peak, found->peak);
      EXPECT_EQ(again.work, found->work);
    }
  }
  EXPECT_GT(fitting, 5000);
}

/// With few states allowed, kept bytes are rounded up: never over the budget, and close to the best.
TEST(Budget, RoundingNeverOvershootsAndIsMonotone) {
  constexpr std::size_t kFew = 6;
  int rounded = 0, searches = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    Chains chains(seed);
    Chain chain = chains.chain(20, 1'000'000'007);
    for (auto& ways : chain.blocks)
      for (Way& way : ways) way.kept += chains.number(0, 1000);  // no two blocks alike
    const int64_t smallest = smallest_budget(chain, kFew), exact = smallest_budget(chain);
    EXPECT_GE(smallest, exact);
    EXPECT_FALSE(cheapest(chain, smallest - 1, kFew));
    int64_t work = -1;
    for (int64_t budget = smallest; budget < 4 * smallest; budget += smallest / 7 + 1) {
      const auto found = cheapest(chain, budget, kFew);
      ASSERT_TRUE(found) << "seed " << seed;
      EXPECT_LE(found->peak, budget);
      rounded += found->quantum > 1 ? 1 : 0;
      ++searches;
      if (work >= 0) {
        EXPECT_LE(found->work, work) << "seed " << seed;
      }
      work = found->work;
      const auto fine = cheapest(chain, budget, 8 * kFew);
      ASSERT_TRUE(fine);
      EXPECT_LE(fine->peak, budget);
    }
  }
  EXPECT_GT(rounded, searches / 4);
}

TEST(Budget, MoreIsNeverSlower) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    Chains chains(seed);
    const Chain chain = chains.chain(12, 50);
    const int64_t smallest = smallest_budget(chain);
    auto before = cheapest(chain, smallest);
    for (int64_t budget = smallest + 1; budget < smallest + 200; ++budget) {
      auto now = cheapest(chain, budget);
      ASSERT_TRUE(now);
      EXPECT_LE(now->work, before->work) << "seed " << seed << " budget " << budget;
      before = now;
    }
  }
}

/// Blocks of one kind that recompute in backward: those left unchecked are the last ones, and that order has the
/// smallest peak of all.
TEST(Budget, UncheckedBlocksComeLast) {
  const std::vector<Way> ways{{100, 110, 120, 0}, {10, 60, 160, 50}};
  for (int64_t count = 1; count <= 8; ++count) {
    Chain chain;
    chain.fixed = 7;
    chain.blocks.assign(static_cast<std::size_t>(count), ways);
    for (int64_t budget = smallest_budget(chain); budget < 7 + 121 * count; budget += 11) {
      const auto found = cheapest(chain, budget);
      ASSERT_TRUE(found);
      EXPECT_TRUE(std::is_sorted(found->ways.rbegin(), found->ways.rend())) << "unchecked blocks are way 0";
      std::vector<std::size_t> order = found->ways;
      std::sort(order.begin(), order.end());
      do {
        EXPECT_LE(found->peak, evaluate(chain, order).peak);
      } while (std::next_permutation(order.begin(), order.end()));
    }
  }
}

/// Unchecked first would not fit here: the recompute of the last block needs its room while everything is kept.
TEST(Budget, PeaksOfBackwardDecideTheOrder) {
  Chain chain;
  chain.blocks.assign(2, {{100, 100, 100, 0}, {10, 10, 150, 50}});
  EXPECT_EQ(evaluate(chain, {0, 1}).peak, 250);
  EXPECT_EQ(evaluate(chain, {1, 0}).peak, 150);
  const auto found = cheapest(chain, 199);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->ways, (std::vector<std::size_t>{1, 0}));
}

TEST(Budget, EdgesOfTheQuestion) {
  const Chain nothing{.fixed = 5, .tail_peak = 3, .blocks = {}};
  EXPECT_EQ(smallest_budget(nothing), 8);
  EXPECT_FALSE(cheapest(nothing, 7));
  ASSERT_TRUE(cheapest(nothing, 8));
  EXPECT_EQ(cheapest(nothing, 8)->peak, 8);
  // What only exists between forward and backward counts as well.
  const Chain tail{.fixed = 0, .tail_peak = 40, .blocks = {{{10, 0, 0, 0}, {0, 0, 0, 1}}}};
  EXPECT_EQ(cheapest(tail, 50)->work, 0);
  EXPECT_EQ(cheapest(tail, 49)->work, 1);
}

/// PyTorch's test_ac_knapsack.py, test_dp_knapsack: (memory, runtime, limit, runtime of what is saved, saved).
TEST(AcKnapsack, CasesOfPyTorch) {
  struct Case {
    std::vector<int64_t> bytes, work;
    int64_t limit, saved_flops;
    std::vector<std::size_t> saved;
  };
  const std::vector<Case> cases{
      {{2, 3, 2, 4, 1}, {1, 2, 1, 3, 2}, 5, 5, {3, 4}},
      {{1, 1, 1}, {1, 2, 3}, 3, 6, {0, 1, 2}},
      {{10, 20, 30}, {1, 2, 3}, 5, 0, {}},
      {{1, 2, 3}, {10, 20, 30}, 1, 10, {0}},
      {{1, 1, 1}, {2, 2, 2}, 2, 4, {}},  // which two is free
      {{0, 2, 3}, {5, 2, 3}, 5, 10, {0, 1, 2}},
      {{1, 2, 3}, {0, 2, 3}, 3, 3, {2}},
      {{100, 200, 300}, {1000, 2000, 3000}, 500, 5000, {1, 2}},
      {{5, 15, 20}, {10, 20, 30}, 20, 30, {}},  // 0 and 1, or 2 alone: equal
      {{}, {}, 10, 0, {}},
      {{1, 2, 3}, {1, 2, 3}, 0, 0, {}},
      {{0, 0, 0}, {1, 2, 3}, 0, 6, {0, 1, 2}},
      {{1, 2, 3}, {0, 0, 0}, 6, 0, {}},
  };
  for (const Case& c : cases) {
    const auto found = cheapest(keep_or_recompute(c.bytes, c.work), c.limit);
    ASSERT_TRUE(found);
    int64_t all = 0;
    for (const int64_t work : c.work) all += work;
    EXPECT_EQ(all - found->work, c.saved_flops);
    EXPECT_LE(found->kept, c.limit);
    for (const std::size_t i : c.saved) EXPECT_EQ(found->ways[i], 0U) << i;
  }
}

// PyTorch's test_ac.py, class MemoryBudgetTest: bytes in units of a 512 x 512 matrix, work in units of their product.

TEST(MemoryBudget, MatmulEvenChain) {
  // Five links of equal size; the input of each is either kept or computed again by the product before it.
  const Chain chain = keep_or_recompute({1, 1, 1, 1, 1}, {1, 1, 1, 1, 1});
  for (int64_t budget = 0; budget <= 5; ++budget) {
    const auto found = cheapest(chain, budget);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->kept, budget);
    EXPECT_EQ(found->work, 5 - budget);
  }
}

TEST(MemoryBudget, MatmulUnevenChain) {
  const std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>> configurations{
      {{11, 3, 4, 2}, {18, 17, 16, 15, 14, 13, 11, 7, 6, 5}},
      {{3, 5, 11, 17, 14}, {42, 30, 19, 8, 3}},
      {{2, 32, 24, 16, 31, 25, 19, 50, 48, 26}, {0, 50, 69, 45, 112, 120, 162, 206, 223, 247}},
  };
  for (const auto& [sizes, sums] : configurations)
    for (const int64_t sum : sums) {
      const auto found = cheapest(keep_or_recompute(sizes, sizes), sum);
      ASSERT_TRUE(found);
      EXPECT_EQ(found->kept, sum);
    }
}

TEST(MemoryBudget, PrioritizeCheaperMatmul) {
  const Chain chain = keep_or_recompute({4, 4}, {1 * 1 * 4, 2 * 2 * 2});
  const auto found = cheapest(chain, 4);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->kept, 4);
  EXPECT_EQ(found->work, 4);
}

TEST(MemoryBudget, PrioritizeCheaperMatmul2) {
  const Chain chain = keep_or_recompute({4 * 4, 6 * 2, 2 * 6}, {4 * 4 * 4, 6 * 6 * 2, 2 * 2 * 6});
  auto found = cheapest(chain, 28);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->kept, 28);
  EXPECT_EQ(found->work, 2 * 2 * 6);
  found = cheapest(chain, 16);  // the one that is not the nearest to the limit saves more
  ASSERT_TRUE(found);
  EXPECT_EQ(found->kept, 12);
  EXPECT_EQ(found->work, 2 * 2 * 6 + 4 * 4 * 4);
}

TEST(MemoryBudget, AttentionVsLinear) {
  // (length, width): with 2 x length > width attention is the dearer of two equally large outputs.
  for (const auto& [length, width, again] : std::vector<std::tuple<int64_t, int64_t, std::string>>{
           {1, 1, "mm"}, {1, 3, "attn"}, {2, 2, "mm"}, {2, 1, "mm"}, {2, 5, "attn"}, {4, 7, "mm"}, {4, 9, "attn"}}) {
    const int64_t attention = 2 * length * length * width, linear = length * width * width, size = length * width;
    const auto found = cheapest(keep_or_recompute({size, size}, {attention, linear}), 2 * size * 6 / 10);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->kept, size);
    EXPECT_EQ(found->work, again == "mm" ? linear : attention);
  }
}

/// 8 double and 48 single blocks of FLUX.2-dev at 1,536 tokens, sizes that share no divisor.
TEST(Budget, TakesLessThanASecondForFlux2Dev) {
  Chain chain;
  chain.fixed = 32'000'000'123;
  chain.tail_peak = 300'000'000;
  const std::vector<Way> twin{{1'417'339'221, 1'500'000'000, 1'900'000'000, 0},
                              {37'748'739, 900'000'000, 2'300'000'000, 1'740'000'000'000},
                              {75'694'081, 900'000'000, 2'300'000'000, 1'623'000'000'000},
                              {454'033'403, 900'000'000, 2'200'000'000, 810'000'000'000},
                              {871'694'083, 1'000'000'000, 2'100'000'000, 116'000'000'000}};
  const std::vector<Way> lone{{396'361'729, 500'000'000, 800'000'000, 0},
                              {18'874'369, 400'000'000, 900'000'000, 1'000'000'000'000},
                              {37'847'041, 400'000'000, 900'000'000, 884'000'000'000},
                              {151'388'161, 400'000'000, 880'000'000, 464'000'000'000},
                              {322'437'121, 430'000'000, 850'000'000, 116'000'000'000}};
  for (int i = 0; i < 8; ++i) chain.blocks.push_back(twin);
  for (int i = 0; i < 48; ++i) chain.blocks.push_back(lone);
  const auto begin = std::chrono::steady_clock::now();
  const auto found = cheapest(chain, 48'000'000'000);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  ASSERT_TRUE(found);
  EXPECT_LE(found->peak, 48'000'000'000);
  EXPECT_GT(found->peak, 47'500'000'000) << "the room is used";
  RecordProperty("milliseconds", static_cast<int>(1000 * seconds));
  EXPECT_LT(seconds, 1.0);
}

}  // namespace
}  // namespace trainer::planner
