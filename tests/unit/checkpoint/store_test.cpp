/// @file Saving, loading, rotation, and what happens to damaged checkpoints.
#include <base/hash.hpp>
#include <checkpoint/recovery.hpp>
#include <trainer/sdk/error.hpp>

#include <limits>

#include "fixture.hpp"

namespace trainer::checkpoint {
namespace {

class StoreTest : public ::testing::Test {
 protected:
  [[nodiscard]] fs::path ckpt() const { return folder_.path() / "ckpt"; }
  /// Flips one bit in the middle of a file.
  static void damage(const fs::path& file) {
    std::string bytes = test::file_text(file);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    write_text(file, bytes);
  }
  Folder folder_;
  Store store_{folder_.path(), "run"};
  std::vector<std::string> notes_;
};

TEST_F(StoreTest, NothingThereIsNoCheckpoint) {
  EXPECT_FALSE(store_.newest(notes_).has_value());
  EXPECT_TRUE(notes_.empty());
  EXPECT_TRUE(store_.steps().empty());
}

TEST_F(StoreTest, SavesAndLoadsTheSameBits) {
  const fs::path saved = store_.save(250, content_of(3), {{"torch", "2.11.0"}});
  EXPECT_EQ(saved, ckpt() / "step-0000000250");
  EXPECT_EQ(entries(saved), (std::set<std::string>{"MANIFEST.json", "rank-00000.safetensors", "state.json"}));
  EXPECT_EQ(entries(ckpt()), std::set<std::string>{"step-0000000250"});
  Store again(folder_.path(), "other");
  const std::optional<Loaded> loaded = again.newest(notes_);
  ASSERT_TRUE(loaded.has_value());
  expect_same(loaded->content, content_of(3));
  EXPECT_EQ(loaded->manifest.step, 250);
  EXPECT_EQ(loaded->manifest.run_id, "run");
  EXPECT_EQ(loaded->manifest.fingerprints.at("torch"), "2.11.0");
  EXPECT_EQ(loaded->folder, saved);
  EXPECT_TRUE(notes_.empty());
}

TEST_F(StoreTest, SameStepTwiceKeepsTheFirst) {
  const fs::path first = store_.save(7, content_of(1), {});
  EXPECT_EQ(store_.save(7, content_of(2), {}), first);
  expect_same(load(first).content, content_of(1));
}

TEST_F(StoreTest, WhatAnotherRunWroteIsNotTakenForWhatIsSaved) {
  Store(folder_.path(), "another").save(7, content_of(1), {});
  const fs::path saved = store_.save(7, content_of(2), {});
  expect_same(load(saved).content, content_of(2));
  EXPECT_EQ(load(saved).manifest.run_id, "run");
  expect_same(load(saved.string() + ".bad-CKPT_RUN").content, content_of(1));
}

/// As after a deleted run.json: the run has a new id.
TEST_F(StoreTest, WhatTheRunWentOnFromIsKeptWhoeverWroteIt) {
  const fs::path first = Store(folder_.path(), "another").save(7, content_of(1), {});
  ASSERT_TRUE(store_.newest(notes_));
  EXPECT_EQ(store_.save(7, content_of(2), {}), first);
  EXPECT_EQ(entries(ckpt()), std::set<std::string>{"step-0000000007"});
  expect_same(load(first).content, content_of(1));
}

TEST_F(StoreTest, WhatIsDamagedIsNotTakenForWhatIsSaved) {
  const auto saved_over = [&](Store& store) {
    expect_same(load(store.save(7, content_of(2), {})).content, content_of(2));
  };
  store_.save(7, content_of(1), {});
  fs::resize_file(ckpt() / "step-0000000007/state.json", 1);
  saved_over(store_);
  EXPECT_TRUE(entries(ckpt()).contains("step-0000000007.bad-CKPT_SIZE"));
  damage(ckpt() / "step-0000000007/rank-00000.safetensors");
  Store again(folder_.path(), "run");
  saved_over(again);
  EXPECT_TRUE(entries(ckpt()).contains("step-0000000007.bad-CKPT_HASH"));
}

/// The folder was deleted and another run began in it.
TEST_F(StoreTest, NothingOfAnotherRunIsTouchedByOneThatLostTheFolder) {
  Store store(folder_.path(), "run", [] { throw Error(ExitCode::locked, "taken", "RUN_LOCK_LOST"); });
  Store another(folder_.path(), "another");
  for (const int64_t step : {1, 2, 3}) another.save(step, content_of(1), {});
  EXPECT_THROW(store.rotate({.newest = 1}), Error);
  EXPECT_THROW(store.save(3, content_of(2), {}), Error);
  EXPECT_EQ(entries(ckpt()), (std::set<std::string>{"step-0000000001", "step-0000000002", "step-0000000003"}));
}

TEST_F(StoreTest, WhatAnotherRunCommittedMeanwhileIsNotReplaced) {
  int asked = 0;
  Store store(folder_.path(), "run", [&] {
    if (++asked != 2) return;  // first before anything is written, then before it gets its name
    fs::create_directories(ckpt() / "step-0000000007");
    write_text(ckpt() / "step-0000000007" / "of another", "run");
  });
  try {
    store.save(7, content_of(1), {});
    ADD_FAILURE() << "saved";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::io);
    EXPECT_NE(std::string(error.what()).find("cannot rename "), std::string::npos) << error.what();
  }
  EXPECT_EQ(entries(ckpt()), std::set<std::string>{"step-0000000007"});
  EXPECT_EQ(entries(ckpt() / "step-0000000007"), std::set<std::string>{"of another"});
}

TEST_F(StoreTest, RotationKeepsTheNewest) {
  for (const int64_t step : {5, 20, 100, 1000000}) store_.save(step, content_of(1), {});
  store_.rotate({0});
  EXPECT_EQ(store_.steps(), (std::vector<int64_t>{5, 20, 100, 1000000}));
  store_.rotate({2});
  EXPECT_EQ(store_.steps(), (std::vector<int64_t>{100, 1000000}));
  EXPECT_EQ(entries(ckpt()).size(), 2U) << "no rubbish stays";
  store_.rotate({5});
  EXPECT_EQ(store_.steps().size(), 2U);
}

TEST_F(StoreTest, RotationDoesNotCountWhatIsDamaged) {
  for (const int64_t step : {1, 2, 3, 4, 5}) store_.save(step, content_of(1), {});
  fs::resize_file(ckpt() / "step-0000000004/state.json", 1);
  fs::remove(ckpt() / "step-0000000003/MANIFEST.json");
  store_.rotate({2});
  EXPECT_EQ(store_.steps(), (std::vector<int64_t>{2, 3, 4, 5})) << "5 and 2 are the two that are whole";
  store_.rotate({1});
  EXPECT_EQ(store_.steps(), (std::vector<int64_t>{5}));
}

TEST_F(StoreTest, RotationKeepsEveryNth) {
  for (const int64_t step : {10, 20, 30, 40, 50, 55}) store_.save(step, content_of(1), {});
  store_.rotate({.newest = 2, .every = 20});
  EXPECT_EQ(store_.steps(), (std::vector<int64_t>{20, 40, 50, 55}));
  store_.save(60, content_of(1), {});
  store_.rotate({.newest = 1, .every = 20});
  EXPECT_EQ(store_.steps(), (std::vector<int64_t>{20, 40, 60}));
}

TEST_F(StoreTest, RotationKeepsWhatIsPinned) {
  for (const int64_t step : {1, 2, 3, 4}) store_.save(step, content_of(static_cast<int>(step)), {});
  write_text(ckpt() / "step-0000000002" / kPinName, "");
  store_.rotate({.newest = 1});
  EXPECT_EQ(store_.steps(), (std::vector<int64_t>{2, 4}));
  expect_same(load(ckpt() / "step-0000000002").content, content_of(2));
  fs::remove(ckpt() / "step-0000000002" / kPinName);
  store_.rotate({.newest = 1});
  EXPECT_EQ(store_.steps(), std::vector<int64_t>{4});
}

TEST_F(StoreTest, ASingleOneIsReadBackBeforeTheOthersGo) {
  for (const int64_t step : {1, 2}) store_.save(step, content_of(1), {});
  damage(ckpt() / "step-0000000002" / "rank-00000.safetensors");  // of the right size
  store_.rotate({.newest = 1});
  EXPECT_EQ(store_.steps(), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(store_.newest(notes_)->manifest.step, 1);
}

TEST_F(StoreTest, LeftoversOfACrashAreRemoved) {
  store_.save(7, content_of(1), {});
  fs::create_directories(ckpt() / ".tmp-9-run-1");
  write_text(ckpt() / ".tmp-9-run-1" / "state.json", "{");
  fs::create_directories(ckpt() / ".trash-step-0000000001");
  fs::create_directories(ckpt() / "step-1");  // not a name that we make
  const Store again(folder_.path(), "run");
  EXPECT_EQ(entries(ckpt()), (std::set<std::string>{"step-0000000007", "step-1"}));
  EXPECT_EQ(again.steps(), std::vector<int64_t>{7});
}

TEST_F(StoreTest, DamagedNewestIsSetAsideAndTheNextOlderUsed) {
  for (const int step : {1, 2, 3}) store_.save(step, content_of(step), {});
  damage(ckpt() / "step-0000000003" / "rank-00000.safetensors");
  fs::remove(ckpt() / "step-0000000002" / "MANIFEST.json");
  const std::optional<Loaded> loaded = store_.newest(notes_);
  ASSERT_TRUE(loaded.has_value());
  expect_same(loaded->content, content_of(1));
  ASSERT_EQ(notes_.size(), 2U);
  EXPECT_EQ(notes_[0],
            (ckpt() / "step-0000000003" / "rank-00000.safetensors").string() +
                ": its content changed since it was saved (hash); set aside as step-0000000003.bad-CKPT_HASH");
  EXPECT_EQ(notes_[1], (ckpt() / "step-0000000002").string() +
                           ": has no MANIFEST.json; set aside as step-0000000002.bad-CKPT_MISSING");
  EXPECT_EQ(store_.steps(), std::vector<int64_t>{1});
  store_.save(3, content_of(33), {});  // the run gets there again, and the new one is damaged too
  damage(ckpt() / "step-0000000003" / "state.json");
  notes_.clear();
  expect_same(store_.newest(notes_)->content, content_of(1));
  EXPECT_TRUE(notes_.at(0).ends_with("set aside as step-0000000003.bad-CKPT_HASH-2")) << notes_.at(0);
}

TEST_F(StoreTest, ACheckpointUnderTheNameOfAnotherStepIsRefused) {
  for (const int step : {1, 2}) store_.save(step, content_of(step), {});
  fs::rename(ckpt() / "step-0000000002", ckpt() / "step-0000000009");
  expect_same(store_.newest(notes_)->content, content_of(1));
  EXPECT_EQ(notes_.at(0), (ckpt() / "step-0000000009").string() +
                              ": holds the state after step 2; rename it to what it holds, or delete it; set aside as "
                              "step-0000000009.bad-CKPT_STEP");
  const fs::path wrong = ckpt() / "step-0000000008";
  fs::copy(ckpt() / "step-0000000001", wrong);
  for (const fs::path& named : {wrong, wrong / "", wrong / ".", wrong / "../step-0000000008/"})
    EXPECT_THROW((void)load(named), Error) << named;
  const fs::path elsewhere = folder_.path() / "kept";
  fs::rename(ckpt() / "step-0000000001", elsewhere);
  expect_same(load(elsewhere).content, content_of(1));
}

/// "" when choosing a checkpoint ends with an error of the disk and leaves all as it is.
std::string refuses_to_choose(const fs::path& run, const std::string& code) {
  const std::set<std::string> before{"step-0000000001", "step-0000000002"};
  std::vector<std::string> notes;
  try {
    const auto chosen = newest_whole(
        run / "ckpt", [](const fs::path& folder) { verify_folder(folder); }, notes);
    return "it chose " + (chosen ? chosen->string() : "nothing");
  } catch (const Error& error) {
    if (error.exit_code() != ExitCode::io || error.code() != code) return std::string("another error: ") + error.what();
  }
  try {
    (void)looks_whole(run / "ckpt/step-0000000002");
    return "it is known whether it looks whole";
  } catch (const Error&) {
  }
  return entries(run / "ckpt") == before && notes.empty() ? "" : "one was set aside";
}

/// A disk that fails for a moment, or rights that are missing, must not cost a committed step.
TEST_F(StoreTest, WhatCannotBeLookedAtIsNotDamaged) {
  for (const int step : {1, 2}) store_.save(step, content_of(step), {});
  const fs::path newest = ckpt() / "step-0000000002", away = folder_.path() / "away";
  for (const char* name : {"MANIFEST.json", "state.json"}) {
    fs::rename(newest / name, away);
    fs::create_symlink(name, newest / name);  // to itself: ELOOP, as any error that is not ENOENT
    EXPECT_EQ(refuses_to_choose(folder_.path(), ""), "") << name;
    fs::remove(newest / name);
    fs::rename(away, newest / name);
  }
  fs::permissions(newest, fs::perms::none);
  EXPECT_EQ(in_child([&] {
              if (!without_roots_rights()) return std::string("the rights stay");
              return refuses_to_choose(folder_.path(), "IO_PERMISSION");
            }),
            "");
  fs::permissions(newest, fs::perms::owner_all);
  EXPECT_EQ(store_.newest(notes_)->manifest.step, 2);
}

TEST_F(StoreTest, NothingWholeIsAnErrorAndStaysOne) {
  store_.save(1, content_of(1), {});
  damage(ckpt() / "step-0000000001" / "MANIFEST.json");
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      (void)store_.newest(notes_);
      FAIL() << "a silent restart";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::not_found);
      const std::string text = error.what();
      EXPECT_NE(text.find("checkpoints exist, but none is whole"), std::string::npos);
      EXPECT_NE(text.find(attempt == 0 ? "step-0000000001/MANIFEST.json" : "step-0000000001.bad-CKPT_"),
                std::string::npos)
          << text;
      EXPECT_TRUE(notes_.empty()) << "told once";
    }
  }
}

TEST_F(StoreTest, EveryFlippedByteOfEveryFileIsRefused) {
  const fs::path saved = store_.save(4, content_of(2), {{"torch", "2.11.0"}});
  for (const std::string& name : entries(saved)) {
    const std::string bytes = test::file_text(saved / name);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
      write_text(saved / name, damaged);
      try {
        (void)load(saved);
        ADD_FAILURE() << name << " byte " << i << " was accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.exit_code(), ExitCode::bad_input) << name << " byte " << i << ": " << error.what();
      }
    }
    write_text(saved / name, bytes);
  }
  expect_same(load(saved).content, content_of(2));
}

TEST_F(StoreTest, AManifestThatListsTooLittleIsRefused) {
  const fs::path saved = store_.save(4, content_of(2), {});
  Manifest manifest = load(saved).manifest;
  manifest.files.erase(manifest.files.begin());
  write_text(saved / kManifestName, manifest_text(manifest));
  try {
    (void)load(saved);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "CKPT_MANIFEST");
    EXPECT_TRUE(std::string(error.what()).ends_with("does not list rank-00000.safetensors")) << error.what();
  }
}

TEST_F(StoreTest, NonFiniteStateIsNeverCommitted) {
  store_.save(1, content_of(1), {});
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Content content = content_of(2);
    content.tensors["param.half"][3] = bad;
    try {
      store_.save(2, content, {});
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::non_finite);
      EXPECT_STREQ(
          error.what(),
          "\"param.half\" holds NaN or infinity after step 2; the state is not saved, earlier checkpoints stay");
    }
  }
  EXPECT_EQ(entries(ckpt()), std::set<std::string>{"step-0000000001"});
}

TEST_F(StoreTest, NamedFolders) {
  try {
    (void)load(folder_.path() / "nowhere");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::not_found);
  }
  EXPECT_THROW((void)load(folder_.path()), Error) << "a folder without manifest";
}

}  // namespace
}  // namespace trainer::checkpoint
