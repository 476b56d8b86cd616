/// @file What is read of an earlier start before anything is done: run.json, and the recipe that made what is there.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <base/files.hpp>
#include <base/hash.hpp>
#include <checkpoint/attempts.hpp>
#include <checkpoint/committed.hpp>
#include <checkpoint/earlier.hpp>
#include <checkpoint/manifest.hpp>
#include <checkpoint/recovery.hpp>
#include <checkpoint/reserve.hpp>
#include <checkpoint/run_lock.hpp>
#include <trainer/sdk/error.hpp>

#include <filesystem>
#include <string>

namespace trainer::checkpoint {
namespace {

namespace fs = std::filesystem;

class Earlier : public testing::Test {
 protected:
  Earlier() {
    std::string name = (fs::temp_directory_path() / "trainer-earlier-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~Earlier() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) const {
    make_folders((folder_ / name).parent_path());
    write_file_atomically(folder_ / name, text);
  }
  /// A whole checkpoint with this state; returns its folder.
  std::string checkpoint(int64_t step, const std::string& state, const std::string& root = "ckpt") const {
    std::string folder = root + "/" + step_name(step);
    write(folder + "/" + kTensorsName, "tensors");
    write(folder + "/" + kStateName, state);
    write(folder + "/" + kManifestName,
          manifest_text(
              {step, "ab", {{kTensorsName, 7, xxh128("tensors")}, {kStateName, state.size(), xxh128(state)}}, {}}));
    return folder;
  }
  [[nodiscard]] std::string before() const {
    const auto found = recipe_before(folder_, folder_ / "spare");
    return found ? found->what + ": " + found->recipe : "";
  }
  fs::path folder_;
};

TEST_F(Earlier, TheIdOfARun) {
  EXPECT_EQ(stored_run_id(folder_), std::nullopt);
  write("run.json", R"({"run_id": "0123456789abcdef", "trainer": "1"})");
  EXPECT_EQ(stored_run_id(folder_), "0123456789abcdef");
  for (const char* damaged :
       {"", "{", "[]", "{}", R"({"run_id": 3})", R"({"run_id": ""})", R"({"run_id": "../../x"})"}) {
    write("run.json", damaged);
    EXPECT_THROW(stored_run_id(folder_), Error) << damaged;
    const std::string older = checkpoint(2, "{}"), newer = checkpoint(4, "{}");
    EXPECT_EQ(stored_run_id(folder_), "ab") << "that of its checkpoints, which deleting the file would lose";
    write(newer + "/" + kManifestName, "damaged");
    EXPECT_EQ(stored_run_id(folder_), "ab") << "of one that is whole";
    fs::remove_all(folder_ / older);
    EXPECT_THROW(stored_run_id(folder_), Error) << damaged;
    fs::remove_all(folder_ / "ckpt");
  }
  for (const std::size_t digits : {std::size_t{64}, std::size_t{65}}) {
    write("run.json", R"({"run_id": ")" + std::string(digits, 'a') + "\"}");
    if (digits == 64)
      EXPECT_EQ(stored_run_id(folder_), std::string(digits, 'a'));
    else
      EXPECT_THROW(stored_run_id(folder_), Error) << "too long for a file name with what is added";
  }
}

TEST_F(Earlier, TheRecipeOfTheNewestReadableCheckpoint) {
  write("recipe.toml", "of the folder");
  EXPECT_EQ(before(), "") << "nothing was made yet";
  write("log.jsonl", "");
  EXPECT_EQ(before(), "") << "not even a step";
  write("log.jsonl", "{\"step\":1}\n");
  EXPECT_EQ(before(), "the log and the results: of the folder");
  fs::remove(folder_ / "log.jsonl");
  write("lora/x-1.safetensors", "");
  EXPECT_EQ(before(), "the log and the results: of the folder");
  const std::string older = checkpoint(5, R"({"recipe": "of 5"})"), newer = checkpoint(9, R"({"recipe": "of 9"})");
  EXPECT_EQ(before(), "the checkpoint: of 9");
  checkpoint(9, R"({"recipe": )");
  EXPECT_EQ(before(), "the checkpoint: of 5");
  write(older + "/state.json", "");
  EXPECT_EQ(before(), "") << "told when they are read whole";
}

TEST_F(Earlier, TheRecipeOfADamagedCheckpointSaysNothing) {
  checkpoint(5, R"({"recipe": "of 5"})");
  const auto damaged = [&](const char* name, const std::string& text) {
    write(checkpoint(9, R"({"recipe": "of 9"})") + "/" + name, text);
    EXPECT_EQ(before(), "the checkpoint: of 5") << name << ": " << text;
  };
  damaged(kStateName, R"({"recipe": "of 8"})");
  damaged(kStateName, R"({"recipe": "of 99"})");
  damaged(kTensorsName, "tensor");
  damaged(kManifestName, "{}");
  checkpoint(9, R"({"recipe": "of 9"})");
  EXPECT_EQ(before(), "the checkpoint: of 9");
  write("ckpt/" + step_name(11) + "/state.json", R"({"recipe": "of nowhere"})");
  fs::create_directories(folder_ / "ckpt" / step_name(12));
  EXPECT_EQ(before(), "the checkpoint: of 9") << "a folder without manifest";
  fs::copy(folder_ / "ckpt" / step_name(5), folder_ / "ckpt" / step_name(13));
  EXPECT_EQ(before(), "the checkpoint: of 9") << "it is of another step than its name says";
}

TEST_F(Earlier, TheRecipeOfACheckpointInTheFallback) {
  write("run.json", R"({"run_id": "ab"})");
  write("recipe.toml", "of the folder");
  write("log.jsonl", "{\"step\":1}\n");
  checkpoint(5, R"({"recipe": "of 5"})", "spare/run-ab/ckpt");
  checkpoint(6, R"({"recipe": "of another run"})", "spare/run-cd/ckpt");
  EXPECT_EQ(before(), "the checkpoint: of 5");
  checkpoint(5, R"({"recipe": "of 5 here"})");
  EXPECT_EQ(before(), "the checkpoint: of 5 here");
  checkpoint(8, R"({"recipe": "of 8"})", "spare/run-ab/ckpt");
  EXPECT_EQ(before(), "the checkpoint: of 8");
  EXPECT_EQ(recipe_before(folder_, "")->recipe, "of 5 here");
}

/// The message of a start that must not be; empty when it may.
std::string refusal(const fs::path& run, const std::vector<int64_t>& steps) {
  try {
    require_committed(run, steps);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::not_found);
    EXPECT_EQ(error.code(), "CKPT_GONE");
    return error.what();
  }
}

TEST_F(Earlier, TheNewestCheckpointIsMissedWhereverItWas) {
  EXPECT_EQ(refusal(folder_, {}), "") << "a new folder";
  write("run.json", R"({"run_id": "ab", "trainer": "1"})");
  EXPECT_EQ(refusal(folder_, {}), "") << "begun, nothing saved";
  const fs::path there = folder_ / "spare/run-ab/ckpt" / step_name(7);
  note_committed(folder_, "ab", Committed{7, there});
  EXPECT_EQ(stored_run_id(folder_), "ab") << "what else is noted stays";
  EXPECT_EQ(committed(folder_)->step, 7);
  EXPECT_EQ(committed(folder_)->folder, there);
  for (const std::vector<int64_t>& steps : {std::vector<int64_t>{}, {5}, {5, 6}}) {
    const std::string message = refusal(folder_, steps);
    EXPECT_NE(message.find("of step 7, is not where this start looks: " + there.string()), std::string::npos)
        << message;
    EXPECT_NE(message.find(steps.empty() ? "no other" : "of step " + std::to_string(steps.back()) + "."),
              std::string::npos)
        << message;
  }
  EXPECT_EQ(refusal(folder_, {7}), "");
  EXPECT_EQ(refusal(folder_, {5, 9}), "") << "newer than noted: a crash between commit and note";
  make_folders(there.string() + ".bad-CKPT_HASH");
  EXPECT_EQ(refusal(folder_, {5}), "") << "set aside as damaged, which was told";
  note_committed(folder_, "ab", std::nullopt);
  EXPECT_EQ(refusal(folder_, {}), "") << "started anew on purpose";
  write("lora/x-7.safetensors", "");
  EXPECT_NE(refusal(folder_, {}).find("x-7.safetensors"), std::string::npos) << "a run of before there were notes";
  EXPECT_EQ(refusal(folder_, {7}), "");
}

TEST_F(Earlier, TheNoteHoldsWhereTheRunIsMovedOrCopied) {
  const fs::path run = folder_ / "run", moved = folder_ / "moved";
  make_folders(run / "ckpt");
  write("run/run.json", R"({"run_id": "ab"})");
  note_committed(run, "ab", Committed{7, run / "ckpt" / step_name(7)});
  EXPECT_EQ(read_file(run / "run.json", 1 << 20, "note").find(folder_.string()), std::string::npos)
      << "no absolute path";
  EXPECT_EQ(committed(run)->folder, run / "ckpt" / step_name(7));
  const auto damaged_newest_of_the_moved = [&] {
    fs::rename(run, moved);
    EXPECT_NE(refusal(moved, {5}), "");
    make_folders(moved / "ckpt" / (step_name(7) + ".bad-CKPT_HASH"));
    EXPECT_EQ(refusal(moved, {5}), "") << "set aside as damaged, which was told";
    fs::remove_all(moved);
  };
  damaged_newest_of_the_moved();
  make_folders(run / "ckpt");
  write("run/run.json", R"({"run_id": "ab", "newest_checkpoint": {"step": 7, "folder": ")" +
                            (run / "ckpt" / step_name(7)).string() + "\"}}");  // as an earlier version noted it
  EXPECT_EQ(committed(run)->folder, run / "ckpt" / step_name(7));
  damaged_newest_of_the_moved();
}

TEST_F(Earlier, WhatCannotBeLookedAtIsNotMissing) {
  checkpoint(5, R"({"recipe": "of 5"})");
  for (const char* name : {kStateName, kManifestName}) {
    const fs::path file = folder_ / checkpoint(9, "{}") / name;
    fs::remove(file);
    fs::create_symlink(name, file);  // to itself: no ENOENT
    EXPECT_THROW(recipe_before(folder_, ""), Error) << "nothing is known of the newest";
    fs::remove(file);
  }
  fs::create_symlink("run.json", folder_ / "run.json");
  EXPECT_THROW(stored_run_id(folder_), Error) << "a new id would lose the old one";
  EXPECT_THROW((void)committed(folder_), Error);
}

TEST_F(Earlier, ADamagedNoteIsToldAndCheckpointsAreFoundWithoutTouchingAnything) {
  for (const char* note : {"3", "{}", R"({"step": 1.5, "folder": "x"})", R"({"step": -1, "folder": "x"})",
                           R"({"step": 18446744073709551615, "folder": "x"})", R"({"step": 1, "folder": 3})"}) {
    write("run.json", R"({"run_id": "ab", "newest_checkpoint": )" + std::string(note) + "}");
    EXPECT_THROW((void)committed(folder_), Error) << note;
  }
  write("run.json", R"({"run_id": "ab"})");
  EXPECT_TRUE(steps_anywhere(folder_, folder_ / "spare").empty());
  EXPECT_FALSE(fs::exists(folder_ / "ckpt"));
  make_folders(folder_ / "ckpt" / step_name(3));
  make_folders(folder_ / "spare/run-ab/ckpt" / step_name(3));
  make_folders(folder_ / "spare/run-ab/ckpt" / step_name(8));
  EXPECT_EQ(steps_anywhere(folder_, folder_ / "spare"), (std::vector<int64_t>{3, 8}));
  EXPECT_EQ(steps_anywhere(folder_, ""), (std::vector<int64_t>{3}));
}

TEST_F(Earlier, NotesThatAreFarTooLongSayNothing) {
  write("attempts.json", std::string(1 << 20, ' '));
  EXPECT_EQ(Attempts(folder_, 3).warning(), "");
}

TEST_F(Earlier, NotesInAFifoAreNotWaitedFor) {
  ASSERT_EQ(::mkfifo((folder_ / "attempts.json").c_str(), 0600), 0);
  Attempts attempts(folder_, 3);
  attempts.reached(4);
}

TEST_F(Earlier, WhatALinkPointsToIsNotTouched) {
  write("precious", "precious");
  for (const char* name : {"attempts.json", "reserve.bin", ".lock"})
    fs::create_symlink(folder_ / "precious", folder_ / name);
  const auto untouched = [&] { return read_file(folder_ / "precious", 1 << 20, "file") == "precious"; };
  Attempts attempts(folder_, 3);
  attempts.reached(4);
  EXPECT_TRUE(untouched());
  EXPECT_THROW(Reserve(folder_).hold(4096), Error);
  EXPECT_TRUE(untouched());
  EXPECT_THROW(RunLock lock(folder_), Error);
  EXPECT_TRUE(untouched());
  EXPECT_EQ(RunLock::holder(folder_), std::nullopt);
  fs::remove(folder_ / ".lock");
  fs::create_symlink(folder_ / "nowhere", folder_ / ".lock");
  EXPECT_THROW(RunLock lock(folder_), Error);
  EXPECT_FALSE(fs::exists(folder_ / "nowhere"));
}

TEST_F(Earlier, AReserveTakesRoomAndGivesItBack) {
  const Reserve reserve(folder_);
  EXPECT_FALSE(reserve.release());
  reserve.hold(5 << 20);
  EXPECT_EQ(fs::file_size(folder_ / "reserve.bin"), 5U << 20);
  reserve.hold(1 << 20);
  EXPECT_EQ(fs::file_size(folder_ / "reserve.bin"), 5U << 20);
  EXPECT_TRUE(reserve.release());
  EXPECT_FALSE(fs::exists(folder_ / "reserve.bin"));
  EXPECT_THROW(reserve.hold(uint64_t{1} << 60), Error);
  EXPECT_FALSE(fs::exists(folder_ / "reserve.bin"));
}

}  // namespace
}  // namespace trainer::checkpoint
