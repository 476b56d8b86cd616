/// @file Runs that end again and again at one step are counted, reported and at last refused.
#include <base/files.hpp>
#include <checkpoint/attempts.hpp>
#include <trainer/sdk/error.hpp>

#include <chrono>
#include <thread>

#include "fixture.hpp"

namespace trainer::checkpoint {
namespace {

/// A run that goes on from `from`, comes to `reached` and dies. Returns what it was warned of.
std::string die(const fs::path& run, int64_t from, int64_t reached) {
  Attempts attempts(run, from);
  for (int64_t step = from + 1; step <= reached; ++step) attempts.reached(step);
  return attempts.warning();
}

TEST(Attempts, TheSameEndIsReportedAndThenRefused) {
  const Folder folder;
  EXPECT_EQ(die(folder.path(), 250, 252), "");
  EXPECT_EQ(die(folder.path(), 250, 252), "");
  for (const char* count : {"2", "3", "4"})
    EXPECT_EQ(die(folder.path(), 250, 252),
              count + std::string(" runs in a row went on from the checkpoint of step 250 and "
                                  "ended after step 252; after 5 no further one is made"));
  fs::create_directories(folder.path() / "ckpt" / "step-0000000100");
  fs::create_directories(folder.path() / "ckpt" / "step-0000000200");
  fs::create_directories(folder.path() / "ckpt" / "step-0000000250");
  for (int again = 0; again < 2; ++again) {  // refusing counts nothing
    try {
      die(folder.path(), 250, 252);
      ADD_FAILURE() << "a sixth run";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::bad_input);
      EXPECT_EQ(error.code(), "RUN_ATTEMPTS");
      EXPECT_EQ(std::string(error.what()),
                folder.path().string() +
                    ": 5 runs in a row went on from the checkpoint of step 250 and ended after step 252; another would "
                    "do the same. Look at their last messages. To try once more delete " +
                    (folder.path() / "attempts.json").string() + "; to go on from an older one: --resume " +
                    (folder.path() / "ckpt/step-0000000200").string() + " --set run.output=ANOTHER");
    }
  }
  fs::remove(folder.path() / "attempts.json");
  EXPECT_EQ(die(folder.path(), 250, 252), "");
}

TEST(Attempts, TheOlderCheckpointMayBeInTheFallback) {
  const Folder folder;
  const fs::path run = folder.path() / "run", spare = folder.path() / "spare";
  const fs::path older = spare / "run-ab/ckpt/step-0000000200";
  for (const fs::path& one : {run / "ckpt/step-0000000100", older, spare / "run-ab/ckpt/step-0000000250"})
    fs::create_directories(one);
  write_text(run / "run.json", R"({"run_id": "ab"})");
  write_text(run / "attempts.json", R"({"from": 250, "reached": 252, "failures": 4, "ended_at": 252})");
  for (const fs::path& fallback : {fs::path(), spare}) {
    try {
      Attempts::require_another(run, 250, fallback);
      ADD_FAILURE() << "a sixth run";
    } catch (const Error& error) {
      const std::string named = (fallback.empty() ? run / "ckpt/step-0000000100" : older).string();
      EXPECT_NE(std::string(error.what()).find("--resume " + named + " "), std::string::npos) << error.what();
    }
  }
}

TEST(Attempts, ProgressAndAnotherEndBeginTheCountAnew) {
  const Folder folder;
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(die(folder.path(), 250 * i, 250 * i + 3), "") << "another checkpoint each time";
  for (int i = 0; i < 20; ++i) EXPECT_EQ(die(folder.path(), 5000, 5001 + i % 2), "") << "another step each time";
  for (int i = 0; i < 20; ++i) {
    Attempts attempts(folder.path(), 9000);
    EXPECT_EQ(attempts.warning(), "");
    attempts.ended_well();
  }
  EXPECT_FALSE(fs::exists(folder.path() / "attempts.json"));
}

TEST(Attempts, AFolderThatIsAnotherRunsIsLeftAlone) {
  const Folder folder;
  const fs::path file = folder.path() / "attempts.json";
  bool mine = true;
  Attempts attempts(folder.path(), 3, {}, [&] { return mine; });
  attempts.reached(4);
  const std::string theirs = R"({"from": 9, "reached": 9, "failures": 1, "ended_at": 9})";
  write_text(file, theirs);
  mine = false;
  attempts.reached(5);
  attempts.ended_well();
  EXPECT_EQ(read_file(file, 1000, "attempts"), theirs);
  fs::remove(file);
  attempts.reached(6);
  EXPECT_FALSE(fs::exists(file));
  mine = true;
  attempts.reached(7);
  EXPECT_TRUE(fs::exists(file));
}

TEST(Attempts, ASlowAnswerToWhoseTheFolderIsHoldsForSomeSteps) {
  const Folder folder;
  const fs::path file = folder.path() / "attempts.json";
  int asked = 0;
  bool mine = true;
  std::chrono::milliseconds takes(100);
  const auto may_write = [&] {
    std::this_thread::sleep_for(takes);
    return ++asked, mine;
  };
  Attempts attempts(folder.path(), 3, {}, may_write);
  for (int step = 4; step < 9; ++step) attempts.reached(step);
  EXPECT_EQ(asked, 1);
  EXPECT_NE(read_file(file, 1000, "attempts").find("\"reached\":8"), std::string::npos);
  takes = {};
  mine = false;
  attempts.ended_well();  // deletes nothing on an old answer
  EXPECT_EQ(asked, 2);
  EXPECT_TRUE(fs::exists(file));
  mine = true;
  attempts.reached(10);
  EXPECT_EQ(asked, 3) << "a quick answer is asked for again";
  EXPECT_NE(read_file(file, 1000, "attempts").find("\"reached\":10"), std::string::npos);
}

TEST(Attempts, BeforeTheFirstStepCountsToo) {
  const Folder folder;
  for (int i = 0; i < 5; ++i) die(folder.path(), 7, 7);
  EXPECT_THROW(die(folder.path(), 7, 7), Error);
}

TEST(Attempts, DamagedNotesSayNothing) {
  for (const char* text : {"", "{", "[]", "{\"from\":3}", "{\"from\":3,\"reached\":-1,\"failures\":9,\"ended_at\":3}",
                           "{\"from\":3,\"reached\":1e30,\"failures\":9,\"ended_at\":3}"}) {
    const Folder folder;
    write_text(folder.path() / "attempts.json", text);
    EXPECT_EQ(die(folder.path(), 3, 4), "") << text;
  }
}

TEST(Attempts, AFolderThatTakesNoNotesIsNoReasonToEnd) {
  const Folder folder;
  fs::create_directory(folder.path() / "attempts.json");
  EXPECT_EQ(die(folder.path(), 3, 5), "");
}

}  // namespace
}  // namespace trainer::checkpoint
