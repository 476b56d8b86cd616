/// @file The machine dies after any file operation of a save, with un-synced changes there, missing or torn; and again
/// while the next start cleans up.
#include <gtest/gtest.h>
#include <checkpoint/patience.hpp>
#include <checkpoint/recovery.hpp>
#include <trainer/sdk/error.hpp>

#include <cerrno>
#include <cstdio>
#include <fstream>

#include "campaign.hpp"
#include "crash_states.hpp"

namespace trainer::faults {
namespace {

namespace fs = std::filesystem;
using Kind = Operation::Kind;

/// The operations of one save with rotation, and how many were done when save returned.
struct Recorded {
  std::vector<Operation> operations;
  std::size_t committed = 0;
  int refused = 0;  ///< calls that were made to fail
};

Recorded record(const fs::path& run, const checkpoint::Keep& keep = {.newest = 2}) {
  Recorded recorded;
  const Journal journal(run);
  save_third(
      run, [&] { recorded.committed = journal.operations().size(); }, keep);
  recorded.operations = journal.operations();
  return recorded;
}

std::string name_of(const Recorded& recorded, std::size_t done, const Loss& loss) {
  return "crash after " + std::to_string(done) + " of " + std::to_string(recorded.operations.size()) + " operations (" +
         (done == 0 ? "none" : text_of(recorded.operations[done - 1])) + "), " + text_of(loss);
}

int64_t committed_at(const Recorded& recorded, std::size_t done) { return done >= recorded.committed ? 3 : 2; }

TEST(Crash, AfterEveryOperationOfASave) {
  Scratch scratch;
  prepare(scratch.fresh());
  Disk disk(scratch.path() / "run");
  const Recorded recorded = record(scratch.path() / "run");
  ASSERT_GT(recorded.operations.size(), 20U);
  Verdict verdict;
  Scratch after;
  for (std::size_t done = 0;; ++done) {
    for (const Loss& loss : losses(8)) {
      disk.crash_into(after.fresh(), loss);
      judge(after.path() / "run", committed_at(recorded, done), name_of(recorded, done, loss), verdict);
    }
    if (done == recorded.operations.size()) break;
    disk.apply(recorded.operations[done]);
  }
  std::printf("crashes during a save: %s\n", verdict.text().c_str());
  EXPECT_EQ(verdict.unrecoverable + verdict.lost + verdict.damaged + verdict.unusable, 0) << verdict.text();
}

TEST(Crash, AgainWhileTheNextStartCleansUp) {
  Scratch scratch;
  prepare(scratch.fresh());
  Disk disk(scratch.path() / "run");
  const Recorded recorded = record(scratch.path() / "run");
  Verdict verdict;
  Scratch once, twice;
  for (std::size_t done = 0;; ++done) {
    for (const Loss& first : losses(1)) {
      disk.crash_into(once.fresh(), first);
      Disk recovering(once.path() / "run");
      std::vector<Operation> operations;
      {
        const Journal journal(once.path() / "run");
        checkpoint::Store store(once.path() / "run", "recovery");
        std::vector<std::string> notes;
        store.newest(notes);
        operations = journal.operations();
      }
      for (const Operation& operation : operations) {
        recovering.apply(operation);
        for (const Loss& second : {Loss{}, Loss{Loss::Data::kept, Loss::Names::kept, 0},
                                   Loss{Loss::Data::random, Loss::Names::random, done + 1}}) {
          recovering.crash_into(twice.fresh(), second);
          judge(twice.path() / "run", committed_at(recorded, done),
                name_of(recorded, done, first) + ", then after " + text_of(operation), verdict);
        }
      }
    }
    if (done == recorded.operations.size()) break;
    disk.apply(recorded.operations[done]);
  }
  std::printf("crashes during a recovery: %s\n", verdict.text().c_str());
  EXPECT_GT(verdict.cases, 100);
  EXPECT_EQ(verdict.unrecoverable + verdict.lost + verdict.damaged + verdict.unusable, 0) << verdict.text();
}

/// The first save of a run, whose folder and the one above it are made by its start.
Recorded record_first(const fs::path& scratch) {
  Recorded recorded;
  const Journal journal(scratch);
  save_first(scratch, [&] { recorded.committed = journal.operations().size(); });
  recorded.operations = journal.operations();
  return recorded;
}

void expect_none(const char* what, const Verdict& verdict) {
  std::printf("%s: %s\n", what, verdict.text().c_str());
  EXPECT_EQ(verdict.unrecoverable + verdict.lost + verdict.damaged + verdict.unusable, 0) << verdict.text();
}

TEST(Crash, AfterEveryOperationOfAFirstSave) {
  Scratch scratch, after;
  const Disk empty(scratch.fresh());
  Disk disk = empty;
  const Recorded recorded = record_first(scratch.path() / "run");
  ASSERT_GT(recorded.operations.size(), 20U);
  Verdict verdict;
  for (std::size_t done = 0;; ++done) {
    for (const Loss& loss : losses(8)) {
      disk.crash_into(after.fresh(), loss);
      judge(after.path() / "run" / kNewRun, done >= recorded.committed ? 1 : 0, name_of(recorded, done, loss), verdict);
    }
    if (done == recorded.operations.size()) break;
    disk.apply(recorded.operations[done]);
  }
  expect_none("crashes during a first save", verdict);
}

/// With keep = 1 there is least to fall back on; and what is pinned is there at every moment.
TEST(Crash, AfterEveryOperationOfASaveThatKeepsOne) {
  Scratch scratch, after;
  prepare(scratch.fresh());
  const fs::path pinned = fs::path("ckpt") / "step-0000000001", run = scratch.path() / "run";
  std::ofstream(run / pinned / checkpoint::kPinName) << "before the new pictures";
  Disk disk(run);
  const Recorded recorded = record(run, {.newest = 1});
  EXPECT_EQ(checkpoint::steps_in(run / "ckpt"), (std::vector<int64_t>{1, 3}));
  Verdict verdict;
  for (std::size_t done = 0;; ++done) {
    for (const Loss& loss : losses(8)) {
      disk.crash_into(after.fresh(), loss);
      judge(after.path() / "run", committed_at(recorded, done), name_of(recorded, done, loss), verdict);
      EXPECT_NO_THROW(checkpoint::verify_folder(after.path() / "run" / pinned)) << name_of(recorded, done, loss);
    }
    if (done == recorded.operations.size()) break;
    disk.apply(recorded.operations[done]);
  }
  expect_none("crashes during a save that keeps one", verdict);
}

/// As the program saves at its end: with a reserve, a fallback, the note of the newest checkpoint, and an export.
TEST(Crash, AfterEveryOperationOfTheLastSaveOfARun) {
  for (const bool full : {false, true}) {
    Scratch scratch, after;
    prepare_placed(scratch.fresh());
    Disk disk(scratch.path() / "run");
    Recorded recorded;
    {
      Journal journal(scratch.path() / "run");
      const Failure failure{ENOSPC, false};
      // The run's folder takes nothing more, so that the fallback does.
      journal.fail = [&](std::size_t, Kind kind) {
        return full && kind == Kind::allocate && recorded.committed == 0 && ++recorded.refused < 3 ? &failure : nullptr;
      };
      save_placed(
          scratch.path() / "run", [&] { recorded.committed = journal.operations().size(); }, [](const std::string&) {});
      recorded.operations = journal.operations();
    }
    EXPECT_EQ(fs::exists(scratch.path() / "run/spare/run-ab/ckpt/step-0000000003"), full);
    Verdict verdict;
    for (std::size_t done = 0;; ++done) {
      for (const Loss& loss : losses(4)) {
        disk.crash_into(after.fresh(), loss);
        judge_placed(after.path() / "run", committed_at(recorded, done), name_of(recorded, done, loss), verdict);
      }
      if (done == recorded.operations.size()) break;
      disk.apply(recorded.operations[done]);
    }
    expect_none(
        full ? "crashes during the last save of a run, into the fallback" : "crashes during the last save of a run",
        verdict);
  }
}

/// A killed process leaves folders that the next one sees and the disk may not have: what the next one saves counts.
TEST(Crash, AfterAFirstSaveThatFollowsAKill) {
  Scratch scratch, after;
  const std::size_t calls = record_first(scratch.fresh()).operations.size();
  const Failure gone{EIO, false};
  Verdict verdict;
  for (std::size_t killed = 0; killed < calls; ++killed) {
    Disk disk(scratch.fresh());
    const fs::path root = scratch.path() / "run";
    Journal journal(root);
    journal.fail = [&](std::size_t number, Kind kind) {  // a kill closes files
      return number >= killed && kind != Kind::close ? &gone : nullptr;
    };
    try {
      save_first(root, [] {});
    } catch (const Error&) {  // whatever it was doing is left as it is: all that would clean up fails, too
    }
    journal.fail = {};
    save_first(root, [] {});
    for (const Operation& operation : journal.operations()) disk.apply(operation);
    for (const Loss& loss : losses(2)) {
      disk.crash_into(after.fresh(), loss);
      judge(after.path() / "run" / kNewRun, 1, "killed at call " + std::to_string(killed) + ", " + text_of(loss),
            verdict);
    }
  }
  expect_none("crashes after a first save that follows a kill", verdict);
}

/// One call fails, the save is tried again as a run does, and then the machine dies: what was reported as saved is
/// there, though the kernel calls clean what a failed sync did not write.
TEST(Crash, AfterASaveThatWasTriedAgain) {
  Scratch scratch, after;
  const checkpoint::Patience at_once{.sleep = [](std::chrono::milliseconds) {}};
  const Failure failure{EIO, false, /*loses=*/true};
  Verdict verdict;
  int64_t again = 0;
  std::size_t at = 0, calls = 1;
  for (; at < calls; ++at) {
    const fs::path run = scratch.fresh();
    prepare(run);
    Disk disk(run);
    checkpoint::Store store(run, "run");
    Journal journal(run);
    journal.fail = [&](std::size_t number, Kind) { return number == at ? &failure : nullptr; };
    checkpoint::save_patiently([&] { store.save(3, state_of(3), {}); }, at_once, [&](const std::string&) { ++again; });
    calls = journal.calls();
    for (const Operation& operation : journal.operations()) disk.apply(operation);
    for (const Loss& loss : losses(2)) {
      disk.crash_into(after.fresh(), loss);
      judge(after.path() / "run", 3, "call " + std::to_string(at) + " fails, " + text_of(loss), verdict);
    }
  }
  EXPECT_GT(at, 20U);
  EXPECT_GT(again, 10);
  expect_none("crashes after a save that was tried again", verdict);
}

/// The rule itself: everything in a folder is durable before the folder gets its name, and the name before save
/// returns.
TEST(Crash, OrderOfOperations) {
  Scratch scratch;
  prepare(scratch.fresh());
  const Recorded recorded = record(scratch.path() / "run");
  std::set<int64_t> unsynced_files;
  std::set<std::string> unsynced_folders;
  bool named = false;
  for (std::size_t i = 0; i < recorded.committed; ++i) {
    const Operation& operation = recorded.operations[i];
    const std::string folder = fs::path(operation.path).parent_path();
    if (operation.kind == Kind::write || operation.kind == Kind::truncate) unsynced_files.insert(operation.file);
    if (operation.kind == Kind::sync && operation.file != 0) unsynced_files.erase(operation.file);
    if (operation.kind == Kind::sync && operation.file == 0) unsynced_folders.erase(operation.path);
    if (operation.kind == Kind::rename && operation.target == "ckpt/step-0000000003") {
      EXPECT_TRUE(unsynced_files.empty());
      EXPECT_FALSE(unsynced_folders.contains(operation.path));
      named = true;
    }
    if (operation.kind != Kind::write && operation.kind != Kind::sync && operation.kind != Kind::close &&
        operation.kind != Kind::allocate)
      unsynced_folders.insert(folder);
  }
  EXPECT_TRUE(named);
  EXPECT_FALSE(unsynced_folders.contains("ckpt"));
  for (std::size_t i = recorded.committed; i < recorded.operations.size(); ++i) {
    const Operation& operation = recorded.operations[i];
    if (operation.kind == Kind::unlink || operation.kind == Kind::rmdir) {
      EXPECT_TRUE(operation.path.starts_with("ckpt/.trash-")) << text_of(operation);
    }
  }
}

/// The model can fail: without the syncs of files and folders, crashes do lose or damage something.
TEST(Crash, TheModelSeesMissingSyncs) {
  Scratch scratch;
  prepare(scratch.fresh());
  Disk disk(scratch.path() / "run");
  Recorded recorded = record(scratch.path() / "run");
  std::erase_if(recorded.operations, [](const Operation& operation) { return operation.kind == Kind::sync; });
  Verdict verdict;
  Scratch after;
  for (const Operation& operation : recorded.operations) disk.apply(operation);
  for (const Loss& loss : losses(8)) {
    disk.crash_into(after.fresh(), loss);
    judge(after.path() / "run", 3, text_of(loss), verdict);
  }
  EXPECT_GT(verdict.lost, 0) << verdict.text();
}

/// Nor is it bound to any order: of two names that were not synced either may be there without the other.
TEST(Crash, TheModelKeepsNamesInNoOrder) {
  Scratch scratch, after;
  const fs::path run = scratch.fresh();
  Disk disk(run);
  for (const char* name : {"first", "second"}) disk.apply({Kind::mkdir, name, "", 0, 0, ""});
  std::set<std::pair<bool, bool>> seen;
  for (uint64_t seed = 1; seed <= 64; ++seed) {
    disk.crash_into(after.fresh(), {Loss::Data::lost, Loss::Names::random, seed});
    seen.emplace(fs::exists(after.path() / "run/first"), fs::exists(after.path() / "run/second"));
  }
  EXPECT_EQ(seen.size(), 4U);
}

}  // namespace
}  // namespace trainer::faults
