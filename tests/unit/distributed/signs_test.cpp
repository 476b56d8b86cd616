/// @file Signs of life: who works, who waits, who is gone.
#include <gtest/gtest.h>

#include <distributed/signs.hpp>

namespace trainer::distributed {
namespace {

using std::chrono::seconds;

const Clock::time_point kStart{};

Seen seen(uint64_t meeting, seconds beat, seconds progress, bool left = false) {
  return {{1, 1, meeting, left, "training, step 7"}, kStart + beat, kStart + progress};
}

TEST(Signs, TextAndBack) {
  for (const Sign& sign : {Sign{}, Sign{7, 3, 9, true, "samples 3/20, \"after\"\nsecond line"}})
    EXPECT_EQ(parse_sign(to_text(sign)), sign);
  EXPECT_EQ(parse_sign("nonsense"), Sign{});
}

TEST(Signs, FaultTextAndBack) {
  const Fault fault{3, 76, false, "the loss became nan\n  in block 2"};
  EXPECT_EQ(parse_fault(to_text(fault)), fault);
  EXPECT_FALSE(parse_fault(""));
}

TEST(Signs, ChangesAreDated) {
  Seen one;
  one.update({1, 1, 0, false, ""}, kStart + seconds(1));
  one.update({2, 1, 0, false, ""}, kStart + seconds(2));
  EXPECT_EQ(one.beat, kStart + seconds(2));
  EXPECT_EQ(one.progress, kStart + seconds(1));
  one.update({2, 1, 1, false, ""}, kStart + seconds(3));
  EXPECT_EQ(one.beat, kStart + seconds(2));
  EXPECT_EQ(one.progress, kStart + seconds(3)) << "coming to a collective is progress";
}

TEST(Signs, SilenceIsNamedUnlessTheRankLeft) {
  const std::vector<Seen> all{seen(1, seconds(9), seconds(9)), seen(1, seconds(5), seconds(9)),
                              seen(1, seconds(2), seconds(2), true), seen(1, seconds(9), seconds(0))};
  const auto missing = silent_ranks(all, 3, kStart + seconds(10), seconds(3));
  ASSERT_EQ(missing.size(), 1U);
  EXPECT_EQ(missing[0].rank, 1);
  EXPECT_EQ(missing[0].how, "is gone: its process gave no sign of life for 5 s; its last sign was: training, step 7");
}

TEST(Signs, TheOwnRankIsNeverMissing) {
  EXPECT_TRUE(silent_ranks({seen(1, seconds(0), seconds(0))}, 0, kStart + seconds(10), seconds(3)).empty());
  EXPECT_TRUE(late_ranks({seen(1, seconds(0), seconds(0))}, 0, 5, kStart, kStart + seconds(99), seconds(3)).empty());
}

TEST(Signs, ARankThatWorksIsNotLate) {
  const std::vector<Seen> all{seen(4, seconds(100), seconds(90)), seen(5, seconds(100), seconds(0))};
  EXPECT_TRUE(late_ranks(all, 1, 5, kStart, kStart + seconds(100), seconds(30)).empty());
  const auto late = late_ranks(all, 1, 5, kStart, kStart + seconds(125), seconds(30));
  ASSERT_EQ(late.size(), 1U);
  EXPECT_EQ(late[0].rank, 0);
  EXPECT_NE(late[0].how.find("its process lives, but got nothing done for 35 s"), std::string::npos) << late[0].how;
}

TEST(Signs, TheWaitCountsFromTheOwnArrival) {
  const std::vector<Seen> all{seen(4, seconds(100), seconds(0)), seen(5, seconds(100), seconds(0))};
  EXPECT_TRUE(late_ranks(all, 1, 5, kStart + seconds(80), kStart + seconds(100), seconds(30)).empty());
  EXPECT_EQ(late_ranks(all, 1, 5, kStart + seconds(60), kStart + seconds(100), seconds(30)).size(), 1U);
}

TEST(Signs, OneThatCameIsLateOnlyWhenItFellSilent) {
  EXPECT_TRUE(
      late_ranks({seen(5, seconds(100), seconds(0)), {}}, 1, 5, kStart, kStart + seconds(100), seconds(30)).empty());
  const auto late =
      late_ranks({seen(5, seconds(50), seconds(50)), {}}, 1, 5, kStart, kStart + seconds(100), seconds(30));
  ASSERT_EQ(late.size(), 1U);
  EXPECT_NE(late[0].how.find("it gave no sign of life for 50 s"), std::string::npos) << late[0].how;
}

}  // namespace
}  // namespace trainer::distributed
