/// @file The machine dies after any file operation of a cache phase: entries are whole or not there, and those that
/// were committed are there.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <cache/store.hpp>

#include <cstdio>

#include "campaign.hpp"
#include "crash_states.hpp"

namespace trainer::faults {
namespace {

namespace fs = std::filesystem;
using State = cache::Store::State::Kind;

/// Three commits of four entries each; folders are shared within them and among them.
constexpr int kCommits = 3, kEntries = 4;

std::string key_of(int entry) {
  const std::string digits = std::to_string(entry % 5) + std::to_string(entry % 2);
  return digits + "000000000000000000000000000" + std::to_string(100 + entry);
}

struct Recorded {
  std::vector<Operation> operations;
  std::vector<std::size_t> committed;  ///< operations done after each commit
};

Recorded record(const fs::path& root) {
  Recorded recorded;
  const Journal journal(root);
  const cache::Store store(root / "cache");
  cache::Saver saver(store);
  for (int entry = 0; entry < kCommits * kEntries; ++entry) {
    saver.save(cache::kText, key_of(entry), {{"embeds", at::full({300}, entry, at::kFloat)}}, "a caption");
    if (entry % kEntries != kEntries - 1) continue;
    saver.commit();
    recorded.committed.push_back(journal.operations().size());
  }
  recorded.operations = journal.operations();
  return recorded;
}

struct Verdict {
  int cases = 0, lost = 0, damaged = 0;
};

void judge(const fs::path& root, const Recorded& recorded, std::size_t done, Verdict& verdict) {
  ++verdict.cases;
  const cache::Store store(root / "cache");
  for (int entry = 0; entry < kCommits * kEntries; ++entry) {
    const State state = store.check(cache::kText, key_of(entry), /*whole=*/true).kind;
    const bool committed = done >= recorded.committed[static_cast<std::size_t>(entry / kEntries)];
    if (state == State::damaged) ++verdict.damaged;
    if (state != State::present && committed) ++verdict.lost;
  }
}

Verdict campaign(const Recorded& recorded, Disk disk) {
  Verdict verdict;
  Scratch after;
  for (std::size_t done = 0;; ++done) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      const Loss loss = seed == 0   ? Loss{Loss::Data::lost, Loss::Names::lost, 0}
                        : seed == 1 ? Loss{Loss::Data::lost, Loss::Names::kept, 0}
                        : seed == 2 ? Loss{Loss::Data::torn, Loss::Names::kept, seed}
                                    : Loss{Loss::Data::random, Loss::Names::random, seed};
      disk.crash_into(after.fresh(), loss);
      judge(after.path() / "run", recorded, done, verdict);
    }
    if (done == recorded.operations.size()) break;
    disk.apply(recorded.operations[done]);
  }
  std::printf("crashes of a cache phase: %d cases, %d committed entries lost, %d damaged\n", verdict.cases,
              verdict.lost, verdict.damaged);
  return verdict;
}

TEST(CacheCrash, CommittedEntriesAreThereAndNoneIsDamaged) {
  Scratch scratch;
  const Disk disk(scratch.fresh());
  const Recorded recorded = record(scratch.path() / "run");
  const Verdict verdict = campaign(recorded, disk);
  EXPECT_GT(verdict.cases, 300);
  EXPECT_EQ(verdict.lost, 0);
  EXPECT_EQ(verdict.damaged, 0);
}

/// The campaign can fail: without the syncs of folders entries are lost, without those of files they are damaged.
TEST(CacheCrash, MissingSyncsAreSeen) {
  for (const bool files : {false, true}) {
    Scratch scratch;
    const Disk disk(scratch.fresh());
    Recorded recorded = record(scratch.path() / "run");
    for (Operation& operation : recorded.operations)
      if (operation.kind == Operation::Kind::sync && (operation.file != 0) == files)
        operation.kind = Operation::Kind::close;
    const Verdict verdict = campaign(recorded, disk);
    EXPECT_GT(files ? verdict.damaged : verdict.lost, 0) << files;
  }
}

/// One wait for the disk per file and per folder of a commit, however many entries lie in it.
TEST(CacheCrash, FoldersAreSyncedOnceACommit) {
  Scratch scratch;
  scratch.fresh();
  const Recorded recorded = record(scratch.path() / "run");
  std::map<std::string, int> syncs;
  for (std::size_t i = recorded.committed[0]; i < recorded.committed[1]; ++i) {
    const Operation& operation = recorded.operations[i];
    if (operation.kind == Operation::Kind::sync && operation.file == 0) ++syncs[operation.path];
  }
  EXPECT_GE(syncs.size(), 3U);
  for (const auto& [folder, count] : syncs) EXPECT_EQ(count, 1) << folder;
}

}  // namespace
}  // namespace trainer::faults
