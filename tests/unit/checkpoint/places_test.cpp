/// @file The last resorts of a save: the reserve and the fallback folder.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>

#include <checkpoint/places.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>

#include "fixture.hpp"

namespace trainer::checkpoint {
namespace {

using Notes = std::vector<std::string>;

Places::Note into(Notes& notes) {
  return [&notes](const std::string& note) { notes.push_back(note); };
}

fs::path save(Places& places, int step, bool last, Notes& notes, const Patience& patience = {}) {
  return places.save(
      step, [step] { return content_of(step); }, {}, last, patience, into(notes));
}

/// The run's folder takes nothing: a file stands where its checkpoints would be.
void spoil(const fs::path& run) {
  fs::remove_all(run / "ckpt");
  write_text(run / "ckpt", "");
}

const Patience kHasty{.pause = std::chrono::milliseconds(0)};

TEST(Places, WithoutTroubleTheRunFolderIsTheOne) {
  const Folder folder;
  Notes notes;
  Places places(folder.path() / "run", "ab", {.fallback = folder.path() / "spare"});
  EXPECT_EQ(save(places, 1, false, notes), folder.path() / "run/ckpt/step-0000000001");
  EXPECT_EQ(save(places, 2, true, notes), folder.path() / "run/ckpt/step-0000000002");
  EXPECT_TRUE(notes.empty());
  EXPECT_FALSE(fs::exists(folder.path() / "spare"));
}

TEST(Places, AFailingFolderIsReplacedByTheFallbackAndTheRunGoesOnFromThere) {
  const Folder folder;
  const fs::path run = folder.path() / "run", spare = folder.path() / "spare";
  for (const bool last : {false, true}) {
    Notes notes;
    Places places(run, "ab", {.fallback = spare});
    save(places, 1, false, notes);
    spoil(run);
    EXPECT_EQ(save(places, last ? 3 : 2, last, notes, kHasty),
              spare / "run-ab/ckpt" / (last ? "step-0000000003" : "step-0000000002"));
    ASSERT_FALSE(notes.empty());
    EXPECT_TRUE(notes.back().ends_with("; saving in " + (spare / "run-ab").string())) << notes.back();
    fs::remove_all(run);
  }
  Places again(run, "ab", {.fallback = spare});
  EXPECT_EQ(again.steps(), (std::vector<int64_t>{2, 3}));
  Notes notes;
  auto found = again.newest(notes);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->manifest.step, 3);
  expect_same(found->content, content_of(3));
  save(again, 4, true, notes);
  EXPECT_EQ(again.newest(notes)->folder, run / "ckpt/step-0000000004") << "the newer of the two";
  again.rotate({1});
  EXPECT_EQ(again.steps(), (std::vector<int64_t>{3, 4})) << "the newest of each place";
  EXPECT_TRUE(Places(folder.path() / "other", "cd", {.fallback = spare}).steps().empty()) << "another run's";
}

/// A copy of a run's folder has its id, and so its folder below the fallback.
TEST(Places, ACopyOfTheRunDoesNotShareTheFallbackWhileTheRunUsesIt) {
  const Folder folder;
  const fs::path run = folder.path() / "run", copy = folder.path() / "copy", spare = folder.path() / "spare";
  Notes notes;
  std::optional<Places> places(std::in_place, run, "ab", PlacesOptions{.fallback = spare});
  spoil(run);
  save(*places, 2, false, notes, kHasty);
  fs::create_directory(spare / "run-ab/ckpt/.tmp-3-ab-1");  // it is just saving
  try {
    const Places second(copy, "ab", {.fallback = spare});
    ADD_FAILURE() << "both write there";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::locked);
    EXPECT_NE(std::string(error.what()).find("a copy of this run"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(fs::exists(spare / "run-ab/ckpt/.tmp-3-ab-1"));
  places.reset();
  EXPECT_EQ(Places(copy, "ab", {.fallback = spare}).newest(notes)->manifest.step, 2);
}

TEST(Places, DamageInOnePlaceLeavesTheOther) {
  const Folder folder;
  const fs::path run = folder.path() / "run", spare = folder.path() / "spare";
  Notes notes;
  Store(run, "ab").save(5, content_of(5), {});
  Store(spare / "run-ab", "ab").save(7, content_of(7), {});
  write_text(spare / "run-ab/ckpt/step-0000000007/MANIFEST.json", "{}");
  std::optional<Places> places(std::in_place, run, "ab", PlacesOptions{.fallback = spare});
  EXPECT_EQ(places->newest(notes)->manifest.step, 5);
  places.reset();
  ASSERT_EQ(notes.size(), 1U) << "told once, with why";
  EXPECT_NE(notes.front().find("step-0000000007/MANIFEST.json"), std::string::npos) << notes.front();
  Store(spare / "run-ab", "ab").save(8, content_of(8), {});
  write_text(run / "ckpt/step-0000000005/MANIFEST.json", "{}");
  Store(run, "ab").save(9, content_of(9), {});
  write_text(run / "ckpt/step-0000000009/MANIFEST.json", "{}");
  Places(run, "ab", {.fallback = spare}).newest(notes);
  EXPECT_EQ(Places(run, "ab", {.fallback = spare}).newest(notes)->manifest.step, 8) << "nothing else is whole";
}

TEST(Places, NothingIsSavedForAFolderThatAnotherRunTookOver) {
  const Folder folder;
  Notes notes;
  Places places(folder.path(), "ab", {.fallback = {}, .reserve = false, .may_commit = [] {
                                        throw Error(ExitCode::locked, "taken", "RUN_LOCK_LOST");
                                      }});
  EXPECT_THROW(save(places, 1, true, notes), Error);
  EXPECT_EQ(entries(folder.path() / "ckpt"), (std::set<std::string>{}));
}

TEST(Places, AFolderThatCannotBeLookedAtIsReplacedToo) {
  const Folder folder;
  const fs::path run = folder.path() / "run", spare = folder.path() / "spare";
  bool gone = false;
  Places places(run, "ab", {.fallback = spare, .reserve = false, .may_commit = [&] {
                              if (gone) throw Error(ExitCode::io, "input or output error", "IO");
                            }});
  Notes notes;
  save(places, 1, false, notes);
  gone = true;
  for (const int64_t step : {2, 3})
    EXPECT_EQ(save(places, step, true, notes, kHasty).parent_path(), spare / "run-ab/ckpt");
  EXPECT_THROW(places.rotate({1}), Error) << "the run's own checkpoints stay as they are";
  EXPECT_EQ(places.steps(), (std::vector<int64_t>{1, 3}));
}

/// The run's folder has no room for some looks, the fallback is broken for good.
TEST(Places, TheLastSaveWaitsForTheRunFolderWhereTheFallbackIsNoUse) {
  for (const bool last : {true, false}) {
    const Folder folder;
    const fs::path run = folder.path() / "run", spare = folder.path() / "spare";
    write_text(spare, "a file, not a folder");
    bool full = false;
    Places places(run, "ab", {.fallback = spare, .reserve = false, .may_commit = [&] {
                                if (full) throw Error(ExitCode::io, "no room", "IO_NO_SPACE");
                              }});
    Notes notes;
    save(places, 1, false, notes);
    full = true;
    int64_t waited = 0;
    const Patience patience{.pause = std::chrono::milliseconds(0),
                            .room = std::chrono::seconds(600),
                            .sleep = [&](std::chrono::milliseconds time) {
                              waited += time.count();
                              full = waited < 60'000;
                            }};
    if (!last) {
      EXPECT_THROW(save(places, 2, false, notes, patience), Error) << "on the way nothing is waited for";
      continue;
    }
    EXPECT_EQ(save(places, 2, true, notes, patience), run / "ckpt/step-0000000002");
    EXPECT_EQ(waited, 60'000);
    EXPECT_EQ(std::count(notes.begin(), notes.end(), "no room; waiting for room, at most 600 s"), 1);
    EXPECT_TRUE(std::any_of(notes.begin(), notes.end(), [&](const std::string& note) {
      return note.starts_with("cannot create folder " + spare.string());
    })) << "what is wrong with the fallback";
  }
}

TEST(Places, AFallbackThatMayNotBeWrittenToIsAnErrorOfTheDisk) {
  const Folder folder;
  const fs::path spare = folder.path() / "spare";
  fs::create_directory(spare);
  fs::permissions(spare, fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_EQ(in_child([&]() -> std::string {
              if (!without_roots_rights()) return "the rights stay";
              Notes notes;
              Places places(folder.path() / "run", "ab", {.fallback = spare});
              spoil(folder.path() / "run");
              try {
                return save(places, 1, false, notes, kHasty).string();
              } catch (const Error& error) {
                return std::to_string(static_cast<int>(error.exit_code())) + " " + error.what();
              }
            }),
            "74 checkpoint.fallback " + (spare / "run-ab").string() + ": no permission to write there");
}

/// Takes all that is free.
void fill(const fs::path& file) {
  const int fd = ::open(file.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
  const std::vector<char> block(4096, 'x');
  while (::write(fd, block.data(), block.size()) > 0) {
  }
  ::close(fd);
}

std::string on_a_full_disk(const fs::path& disk, bool reserve) {
  Notes notes;
  Places places(disk, "ab", {.fallback = {}, .reserve = reserve});
  save(places, 1, false, notes);
  places.reserve_for(content_of(2), into(notes));
  if (fs::exists(disk / "reserve.bin") != reserve) return "the reserve";
  fill(disk / "filler");
  const auto fails = [&](int step, bool last) {
    try {
      save(places, step, last, notes);
      return false;
    } catch (const Error& error) {
      return error.code() == "IO_NO_SPACE";
    }
  };
  if (!fails(2, false)) return "a save on the way went to a full disk";
  if (fs::exists(disk / "reserve.bin") != reserve) return "a save on the way took the reserve";
  if (fails(3, true) == reserve) return "the last save";
  if (!reserve) return "";
  if (places.newest(notes)->manifest.step != 3) return "what is saved";
  return notes.back().find("the room that was kept for this save is used") == std::string::npos ? notes.back() : "";
}

/// What `body` returns with small file systems of its own mounted on the folders; "SKIP ..." where that is not
/// possible.
std::string with_disks(const std::vector<fs::path>& folders, const std::function<std::string()>& body) {
  return in_child([&]() -> std::string {
    if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return "SKIP no mount namespace";
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return "SKIP no private mounts";
    for (const fs::path& folder : folders)
      if (::mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=4m") != 0) return "SKIP no tmpfs";
    return body();
  });
}

TEST(Places, TheReserveIsForTheLastSave) {
  for (const bool reserve : {true, false}) {
    const Folder folder;
    const std::string result = with_disks({folder.path()}, [&] { return on_a_full_disk(folder.path(), reserve); });
    if (result.starts_with("SKIP")) GTEST_SKIP() << result;
    EXPECT_EQ(result, "") << reserve;
  }
}

TEST(Places, OfTwoFullDisksTheOneThatGetsRoomIsTaken) {
  for (const bool own : {true, false}) {
    const Folder folder;
    const fs::path run = folder.path() / "run", spare = folder.path() / "spare", chosen = own ? run : spare;
    for (const fs::path& disk : {run, spare}) fs::create_directory(disk);
    const std::string result = with_disks({run, spare}, [&] {
      Notes notes;
      Places places(run, "ab", {.fallback = spare});
      save(places, 1, false, notes);
      for (const fs::path& disk : {run, spare}) fill(disk / "filler");
      const Patience patience{.pause = std::chrono::milliseconds(0),
                              .room = std::chrono::seconds(60),
                              .sleep = [&](std::chrono::milliseconds time) {
                                if (time.count() > 0) fs::remove(chosen / "filler");
                              }};
      const fs::path saved = save(places, 2, true, notes, patience);
      return saved.string().starts_with(chosen.string()) ? std::string() : saved.string();
    });
    if (result.starts_with("SKIP")) GTEST_SKIP() << result;
    EXPECT_EQ(result, "") << chosen;
  }
}

}  // namespace
}  // namespace trainer::checkpoint
