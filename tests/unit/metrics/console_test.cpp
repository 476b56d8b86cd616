#include <metrics/console.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace trainer::metrics {
namespace {

using std::chrono::milliseconds;

StepReport report(int64_t step) {
  return {.step = step,
          .total = 800,
          .loss = 0.33119,
          .smoothed = 0.35,
          .lr = 1e-3,
          .seconds_per_step = 0.0762,
          .seconds_left = 52.1,
          .memory = 812'000'000};
}

TEST(StepLine, HoldsEverythingWhereThereIsRoom) {
  EXPECT_EQ(
      step_line(report(120), 140),
      "step 120/800  15% [###---------------------]  loss 0.3312  smooth 0.3500  lr 1.00e-03  0.076 s/step  ETA 52 s  "
      "RSS 812 MB");
  EXPECT_EQ(step_line(report(800), 140).substr(0, 44), "step 800/800 100% [########################]");
}

TEST(StepLine, FitsAnyWidth) {
  EXPECT_EQ(step_line(report(7), 100),
            "step   7/800   0%  loss 0.3312  smooth 0.3500  lr 1.00e-03  0.076 s/step  ETA 52 s  RSS 812 MB");
  EXPECT_EQ(step_line(report(7), 105).substr(0, 29), "step   7/800   0% [--------] ");
  EXPECT_EQ(step_line(report(7), 60), "step   7/800   0%  loss 0.3312  smooth 0.3500  lr 1.00e-03");
  for (int width = 0; width < 200; ++width)
    EXPECT_LE(step_line(report(444), width).size(), static_cast<std::size_t>(width));
}

TEST(StepLine, SaysWhatIsNotANumber) {
  StepReport bad = report(1);
  bad.loss = std::nan("");
  bad.smoothed = std::numeric_limits<double>::infinity();
  bad.seconds_left = std::nan("");
  bad.memory = 0;
  EXPECT_EQ(step_line(bad, 1 << 20), "step   1/800   0%  loss nan  smooth inf  lr 1.00e-03  0.076 s/step");
}

TEST(PhaseLine, CountsAndDraws) {
  EXPECT_EQ(phase_line(5, 20, "latents", 60), "latents  5/20 [######------------------]");
  EXPECT_EQ(phase_line(0, 0, "latents", 20), "latents 0/0");
}

class ConsoleTest : public testing::Test {
 protected:
  ConsoleOptions options(bool terminal) {
    return {.terminal = terminal,
            .write = [this](std::string_view text) { written_.emplace_back(text); },
            .width = [this] { return width_; },
            .now = [this] { return now_; }};
  }
  std::vector<std::string> written_;
  int width_ = 60;
  std::chrono::steady_clock::time_point now_{};
};

TEST_F(ConsoleTest, ATerminalIsRedrawnTenTimesASecondAtMost) {
  Console console(options(true));
  for (int step = 1; step <= 800; ++step) {
    console.step(report(step));
    now_ += milliseconds(10);
  }
  ASSERT_EQ(written_.size(), 81U);  // every tenth, and the last
  EXPECT_EQ(written_[0], "\r\x1B[K" + step_line(report(1), 59));
  EXPECT_EQ(written_[1], "\r\x1B[K" + step_line(report(11), 59));
  EXPECT_EQ(written_[80], "\r\x1B[K" + step_line(report(800), 59) + "\n");
  console.clear();
  EXPECT_EQ(written_.size(), 81U);  // the line has ended: nothing to take away
}

TEST_F(ConsoleTest, ClearTakesTheLineAwayAndTheWidthMayChange) {
  {
    Console console(options(true));
    console.step(report(1));
    console.clear();
    EXPECT_EQ(written_.back(), "\r\x1B[K");
    width_ = 20;
    now_ += milliseconds(100);
    console.step(report(2));
    EXPECT_EQ(written_.back(), "\r\x1B[K" + step_line(report(2), 19));
  }
  EXPECT_EQ(written_.back(), "\r\x1B[K");  // also when it ends early
  EXPECT_EQ(written_.size(), 4U);
}

TEST_F(ConsoleTest, ElsewherePlainLinesEveryTenSeconds) {
  Console console(options(false));
  for (int step = 1; step <= 800; ++step) {
    console.step(report(step));
    now_ += milliseconds(100);
  }
  ASSERT_EQ(written_.size(), 9U);
  EXPECT_EQ(written_[1],
            "step 101/800  12%  loss 0.3312  smooth 0.3500  lr 1.00e-03  0.076 s/step  ETA 52 s  RSS 812 MB\n");
  EXPECT_EQ(written_[8].substr(0, 17), "step 800/800 100%");
}

TEST_F(ConsoleTest, OrEverySoManySteps) {
  ConsoleOptions every = options(false);
  every.plain_every = 250;
  Console console(every);
  for (int step = 1; step <= 800; ++step) console.step(report(step));
  ASSERT_EQ(written_.size(), 5U);  // 1, 250, 500, 750, 800
  EXPECT_EQ(written_[2].substr(0, 12), "step 500/800");
}

TEST_F(ConsoleTest, PhasesShowTheirBeginningAndEnd) {
  Console console(options(false));
  for (int i = 0; i <= 20; ++i) console.phase(i, 20, "latents");
  for (int i = 0; i <= 3; ++i) console.phase(i, 3, "captions");
  EXPECT_EQ(written_,
            (std::vector<std::string>{"latents  0/20\n", "latents 20/20\n", "captions 0/3\n", "captions 3/3\n"}));
}

TEST_F(ConsoleTest, StepsAfterAPhaseStartAtOnce) {
  Console console(options(false));
  console.phase(3, 3, "captions");
  console.step(report(1));
  EXPECT_EQ(written_.size(), 2U);
}

}  // namespace
}  // namespace trainer::metrics
