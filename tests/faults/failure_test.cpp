/// @file Any file operation of a save fails, once or from then on: the save succeeds or says so, and nothing that was
/// saved before is lost.
#include <gtest/gtest.h>
#include <trainer/sdk/error.hpp>

#include <cerrno>
#include <cstdio>

#include "campaign.hpp"

namespace trainer::faults {
namespace {

namespace fs = std::filesystem;
using Kind = Operation::Kind;

struct Case {
  const char* name;
  Failure failure;
  bool forever;
};
const Case kCases[] = {
    {"EIO once", {EIO, false, /*loses=*/true}, false},
    {"EIO for good", {EIO, false, /*loses=*/true}, true},
    {"ENOSPC once", {ENOSPC, false}, false},
    {"ENOSPC for good", {ENOSPC, false}, true},
    {"EDQUOT for good", {EDQUOT, false}, true},
    {"EROFS for good", {EROFS, false}, true},
    {"EINTR once", {EINTR, false}, false},
    {"short write once", {0, true}, false},
    {"short writes", {0, true}, true},
};

bool concerns(const Failure& failure, Kind kind) {
  if (failure.short_write) return kind == Kind::write;
  const bool needs_room = kind == Kind::create || kind == Kind::mkdir || kind == Kind::write ||
                          kind == Kind::allocate || kind == Kind::sync || kind == Kind::close || kind == Kind::rename;
  return needs_room || (failure.error != ENOSPC && failure.error != EDQUOT);
}

/// What became of a save under a failing call: how far it came, and what it reported.
struct Outcome {
  int64_t committed = 2;
  std::string problem;  ///< thrown, but not as an Error of ours with the exit code for input and output
  bool failed = false;
  std::size_t calls = 0;
  std::vector<Operation> operations;
};

using Save = std::function<void(const fs::path& run, const std::function<void()>& committed)>;

Outcome save_with(const fs::path& run, std::size_t at, const Case& one, const Save& save) {
  Outcome outcome;
  Journal journal(run);
  journal.fail = [&](std::size_t number, Kind kind) {
    const bool now = one.forever ? number >= at : number == at;
    return now && concerns(one.failure, kind) ? &one.failure : nullptr;
  };
  try {
    save(run, [&] { outcome.committed = 3; });
  } catch (const Error& error) {
    outcome.failed = true;
    if (error.exit_code() != ExitCode::io) outcome.problem = error.what();
  } catch (const std::exception& error) {
    outcome.problem = std::string("not our error: ") + error.what();
  }
  outcome.calls = journal.calls();
  outcome.operations = journal.operations();
  return outcome;
}

/// What is tested, and how what it leaves is judged.
struct Subject {
  std::function<void(const fs::path&)> prepare;
  Save save;
  decltype(judge)* judge_it;
};

/// Each call fails in each way. Then the program starts again; and, of the same failure, after a crash of the machine.
void fail_every_call(const Subject& subject) {
  Scratch scratch, after;
  subject.prepare(scratch.fresh());
  const std::size_t calls = save_with(scratch.path() / "run", std::size_t(-1), kCases[0], subject.save).calls;
  ASSERT_GT(calls, 20U);
  for (const Case& one : kCases) {
    Verdict verdict, crashed;
    int64_t failed = 0;
    for (std::size_t at = 0; at < calls; ++at) {
      const fs::path run = scratch.fresh();
      subject.prepare(run);
      Disk disk(run);
      const Outcome outcome = save_with(run, at, one, subject.save);
      failed += outcome.failed ? 1 : 0;
      const std::string name = std::string(one.name) + " at call " + std::to_string(at);
      EXPECT_EQ(outcome.problem, "") << name;
      EXPECT_FALSE(outcome.failed && one.failure.short_write) << name << ": a short write is no failure";
      subject.judge_it(run, outcome.committed, name, verdict);
      for (const Operation& operation : outcome.operations) disk.apply(operation);
      for (const Loss& loss : losses(1)) {
        disk.crash_into(after.fresh(), loss);
        subject.judge_it(after.path() / "run", outcome.committed, name + ", then a crash, " + text_of(loss), crashed);
      }
    }
    std::printf("%s: %s, %lld reported; then a crash: %s\n", one.name, verdict.text().c_str(),
                static_cast<long long>(failed), crashed.text().c_str());
    for (const Verdict& each : {verdict, crashed})
      EXPECT_EQ(each.unrecoverable + each.lost + each.damaged + each.unusable, 0) << each.text();
  }
}

TEST(Failure, OfEveryOperationOfASave) {
  fail_every_call({prepare,
                   [](const fs::path& run, const std::function<void()>& committed) { save_third(run, committed); },
                   judge});
}

/// With the reserve, the fallback, the note of the newest checkpoint, and an export.
TEST(Failure, OfEveryOperationOfTheLastSaveOfARun) {
  fail_every_call({prepare_placed,
                   [](const fs::path& run, const std::function<void()>& committed) {
                     save_placed(run, committed, [](const std::string&) {});
                   },
                   judge_placed});
}

/// What that leaves may vanish in a crash, though it is seen: the next attempt must not take it for saved.
TEST(Failure, OfTheLastSyncIsNoSavedCheckpoint) {
  Scratch scratch;
  prepare(scratch.fresh());
  const fs::path run = scratch.path() / "run", folder = run / "ckpt/step-0000000003";
  checkpoint::Store store(run, "run");
  Journal journal(run);
  const Failure failure{EIO, false};
  int failures = 0;
  const auto named = [&] {
    return !journal.operations().empty() && journal.operations().back().target == "ckpt/step-0000000003";
  };
  journal.fail = [&](std::size_t, Kind kind) {
    return kind == Kind::sync && named() && ++failures == 1 ? &failure : nullptr;
  };
  EXPECT_THROW(store.save(3, state_of(3), {}), Error);
  EXPECT_EQ(failures, 1);
  EXPECT_FALSE(fs::exists(folder));
  EXPECT_EQ(store.steps(), (std::vector<int64_t>{1, 2}));
  const std::size_t before = journal.operations().size();
  EXPECT_EQ(store.save(3, state_of(3), {}), folder);
  std::size_t writes = 0;
  for (std::size_t i = before; i < journal.operations().size(); ++i)
    writes += journal.operations()[i].kind == Kind::write ? 1 : 0;
  EXPECT_GE(writes, 3U) << "all files are new";
  const Operation& last = journal.operations().back();
  EXPECT_TRUE(last.kind == Kind::close || last.kind == Kind::sync) << text_of(last);
  EXPECT_EQ(last.path, "ckpt");
}

}  // namespace
}  // namespace trainer::faults
