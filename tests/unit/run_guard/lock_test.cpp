/// @file The run lock where the kernel's lock of another machine is not seen: signs of life in RUN/.lock.
#include <gtest/gtest.h>
#include <unistd.h>

#include <base/files.hpp>
#include <checkpoint/run_lock.hpp>
#include <trainer/sdk/error.hpp>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

namespace trainer::checkpoint {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr milliseconds kBeat{20};

class RunLockOnNetwork : public testing::Test {
 protected:
  RunLockOnNetwork() {
    std::string name = (fs::temp_directory_path() / "trainer-lock-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~RunLockOnNetwork() override { fs::remove_all(folder_); }

  static LockOptions on(const std::string& machine) { return {.boot = machine, .beat = kBeat, .beats = true}; }
  [[nodiscard]] fs::path file() const { return folder_ / ".lock"; }
  [[nodiscard]] std::string text() const { return read_file(file(), 4096, "lock"); }
  /// What a run on another machine leaves that is killed, or writes while it lives.
  void foreign(unsigned beat, const std::string& token = "77") const {
    write_file_atomically(file(), "pid 5 on node7 since 2026-01-01T00:00:00Z\ntoken " + token + " boot node7 beat " +
                                      std::to_string(beat) + "\n");
  }
  [[nodiscard]] std::string attempt(const LockOptions& options) const {
    try {
      const RunLock lock(folder_, options);
      return "";
    } catch (const Error& error) {
      return error.code() + ": " + error.what();
    }
  }

  fs::path folder_;
};

TEST_F(RunLockOnNetwork, GivesSignsOfLifeAndLeavesNoneAtItsEnd) {
  std::optional<RunLock> lock(std::in_place, folder_, on("here"));
  const std::string first = text();
  EXPECT_TRUE(first.starts_with("pid " + std::to_string(::getpid()) + " on ")) << first;
  std::this_thread::sleep_for(5 * kBeat);
  EXPECT_NE(text(), first);
  EXPECT_NO_THROW(lock->require_mine());
  lock.reset();
  EXPECT_EQ(text(), "");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(attempt({.boot = "other", .beat = std::chrono::seconds(20), .beats = true}), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << "nothing to wait for";
}

TEST_F(RunLockOnNetwork, ALivingRunOnAnotherMachineIsRefused) {
  std::atomic<bool> stop{false};
  foreign(0);
  std::thread other([&] {
    for (unsigned beat = 1; !stop; ++beat, std::this_thread::sleep_for(kBeat)) foreign(beat);
  });
  EXPECT_EQ(attempt(on("here")), "RUN_LOCKED: " + folder_.string() +
                                     ": another run is writing here (pid 5 on node7 since 2026-01-01T00:00:00Z); wait "
                                     "for it, or choose another run.output");
  stop = true;
  other.join();
}

TEST_F(RunLockOnNetwork, ADeadRunOnAnotherMachineIsWaitedForOnce) {
  foreign(41);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(attempt(on("here")), "");
  EXPECT_GE(std::chrono::steady_clock::now() - begin, RunLock::kPatience * kBeat);
}

TEST_F(RunLockOnNetwork, NobodyIsWaitedForWhereTheKernelTells) {
  LockOptions patient{.boot = "node7", .beat = std::chrono::seconds(60), .beats = false};
  foreign(41);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(attempt(patient), "") << "killed on this machine";
  write_file_atomically(file(), "pid 5 on node8 since then\ntoken 3 boot node8 beat -\n");
  EXPECT_EQ(attempt(patient), "") << "a file system of one machine, which was started anew";
  write_file_atomically(file(), "anything");
  EXPECT_EQ(attempt(patient), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST_F(RunLockOnNetwork, WhoLostTheFolderSavesNoMore) {
  RunLock lock(folder_, on("here"));
  EXPECT_TRUE(lock.is_mine());
  foreign(1);
  EXPECT_FALSE(lock.is_mine());
  try {
    lock.require_mine();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::locked);
    EXPECT_EQ(error.code(), "RUN_LOCK_LOST");
    EXPECT_NE(std::string(error.what()).find("pid 5 on node7"), std::string::npos) << error.what();
  }
  std::this_thread::sleep_for(3 * kBeat);
  EXPECT_NE(text().find("node7"), std::string::npos) << "the new holder's text stays";
}

/// "" when the lock is still this run's.
std::string lost(RunLock& lock) {
  try {
    lock.require_mine();
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::locked);
    EXPECT_EQ(error.code(), "RUN_LOCK_LOST");
    return error.what();
  }
}

TEST_F(RunLockOnNetwork, AFolderThatWasDeletedOrMovedIsMadeAgain) {
  const fs::path run = folder_ / "run";
  for (const bool beats : {false, true}) {
    RunLock lock(run, {.boot = "here", .beat = std::chrono::seconds(60), .beats = beats});
    fs::remove_all(run);
    EXPECT_FALSE(lock.is_mine());
    EXPECT_FALSE(fs::exists(run)) << "asking makes nothing";
    EXPECT_EQ(lost(lock), "");
    EXPECT_TRUE(lock.is_mine());
    EXPECT_TRUE(RunLock::holder(run).value_or("").starts_with("pid ")) << "locked as before";
    fs::rename(run, folder_ / "moved");
    EXPECT_EQ(lost(lock), "");
    EXPECT_TRUE(RunLock::holder(run));
    EXPECT_TRUE(RunLock::holder(folder_ / "moved")) << "the log there is still this run's";
    fs::remove(run / ".lock");
    EXPECT_EQ(lost(lock), "");
    EXPECT_TRUE(RunLock::holder(run));
    fs::remove_all(folder_ / "moved");
  }
  EXPECT_EQ(RunLock::holder(run), std::nullopt);
}

TEST_F(RunLockOnNetwork, NoThreadRacesWithWhoDeletesTheFolder) {
  const fs::path run = folder_ / "run";
  RunLock lock(run, on("here"));
  fs::remove_all(run);
  std::this_thread::sleep_for(5 * kBeat);
  EXPECT_FALSE(fs::exists(run)) << "the next save makes it again";
  EXPECT_EQ(lost(lock), "");
  EXPECT_TRUE(RunLock::holder(run));
}

TEST_F(RunLockOnNetwork, AFolderThatWasDeletedAndBegunByAnotherRunIsLost) {
  const fs::path run = folder_ / "run";
  for (const bool beats : {false, true}) {
    const LockOptions options{.boot = "here", .beat = std::chrono::seconds(60), .beats = beats};
    RunLock first(run, options);
    fs::remove_all(run);
    std::optional<RunLock> second(std::in_place, run, options);
    EXPECT_FALSE(first.is_mine());
    EXPECT_TRUE(second->is_mine());
    const std::string message = lost(first);
    EXPECT_NE(message.find("took this folder over (pid "), std::string::npos) << message;
    EXPECT_EQ(lost(*second), "");
    second.reset();
    EXPECT_NE(lost(first), "") << "what the other left is not this run's";
  }
}

TEST_F(RunLockOnNetwork, ACopyThatTookTheNameOfTheFolderIsLockedAnew) {
  const fs::path run = folder_ / "run", copy = folder_ / "copy";
  RunLock lock(run);
  fs::copy(run, copy);
  fs::remove_all(run);
  fs::rename(copy, run);
  EXPECT_EQ(RunLock::holder(run), std::nullopt);
  EXPECT_EQ(lost(lock), "");
  EXPECT_TRUE(RunLock::holder(run));
}

TEST_F(RunLockOnNetwork, AFolderWithoutPermissionIsToldAsThat) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  fs::permissions(folder_, fs::perms::owner_read | fs::perms::owner_exec);
  for (const fs::path& run : {folder_, folder_ / "run"}) {
    try {
      const RunLock lock(run);
      ADD_FAILURE() << run;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::locked) << error.what();
    }
  }
  fs::permissions(folder_, fs::perms::owner_all);
}

TEST_F(RunLockOnNetwork, TheHolderIsKnown) {
  EXPECT_EQ(RunLock::holder(folder_ / "none"), std::nullopt);
  {
    const RunLock lock(folder_);
    EXPECT_TRUE(RunLock::holder(folder_).value_or("").starts_with("pid " + std::to_string(::getpid())));
  }
  EXPECT_EQ(RunLock::holder(folder_), std::nullopt);
}

}  // namespace
}  // namespace trainer::checkpoint
