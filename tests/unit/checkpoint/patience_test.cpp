#include <checkpoint/patience.hpp>
#include <trainer/sdk/error.hpp>

#include <gtest/gtest.h>

#include <vector>

namespace trainer::checkpoint {
namespace {

using std::chrono::milliseconds;

/// A disk that fails as told, then works; what was waited and noted.
struct Disk {
  std::vector<Error> failures;
  int saves = 0;
  std::vector<int64_t> waits{};
  std::vector<std::string> notes{};

  void save(Patience patience) {
    patience.sleep = [this](milliseconds time) { waits.push_back(time.count()); };
    save_patiently(
        [this] {
          const auto at = static_cast<std::size_t>(saves++);
          if (at < failures.size()) throw failures[at];
        },
        patience, [this](const std::string& note) { notes.push_back(note); });
  }
};

const Error kBroken{ExitCode::io, "cannot sync x: Input/output error"};
const Error kFull{ExitCode::io, "cannot write x: No space left on device", "IO_NO_SPACE"};

TEST(Patience, NothingIsWaitedForWhenItWorks) {
  Disk disk;
  disk.save({});
  EXPECT_EQ(disk.saves, 1);
  EXPECT_TRUE(disk.notes.empty());
}

TEST(Patience, AnErrorOfTheDiskIsTriedAgainTwice) {
  Disk disk{.failures = {kBroken, kBroken}};
  disk.save({});
  EXPECT_EQ(disk.saves, 3);
  EXPECT_EQ(disk.waits, (std::vector<int64_t>{500, 1000}));
  EXPECT_EQ(disk.notes[0], "cannot sync x: Input/output error; trying again in 1 s");
  Disk dead{.failures = {kBroken, kBroken, kBroken, kBroken}};
  EXPECT_THROW(dead.save({}), Error);
  EXPECT_EQ(dead.saves, 3);
}

TEST(Patience, AFullDiskIsWaitedForWithinTheTime) {
  Disk disk{.failures = {kFull, kFull}};
  disk.save({.room = milliseconds(70'000)});
  EXPECT_EQ(disk.waits, (std::vector<int64_t>{30'000, 30'000}));
  EXPECT_EQ(disk.notes[1], "cannot write x: No space left on device; waiting for room, at most 40 s");
  Disk full{.failures = std::vector<Error>(9, kFull)};
  EXPECT_THROW(full.save({.room = milliseconds(70'000)}), Error);
  EXPECT_EQ(full.waits, (std::vector<int64_t>{30'000, 30'000, 10'000}));
  EXPECT_EQ(full.saves, 4);
}

TEST(Patience, WithoutTimeAFullDiskFailsAtOnce) {
  Disk disk{.failures = {kFull}};
  EXPECT_THROW(disk.save({}), Error);
  EXPECT_EQ(disk.saves, 1);
}

TEST(Patience, OtherErrorsAreNotRepeated) {
  Disk disk{.failures = {Error(ExitCode::non_finite, "NaN")}};
  EXPECT_THROW(disk.save({.room = milliseconds(70'000)}), Error);
  EXPECT_EQ(disk.saves, 1);
}

}  // namespace
}  // namespace trainer::checkpoint
