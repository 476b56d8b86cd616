/// @file What is read of an earlier start before anything is done: run.json, and the recipe that made what is there.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <base/files.hpp>
#include <checkpoint/attempts.hpp>
#include <checkpoint/earlier.hpp>
#include <checkpoint/recovery.hpp>
#include <checkpoint/reserve.hpp>
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
  [[nodiscard]] std::string before() const {
    const auto found = recipe_before(folder_);
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
  write("ckpt/" + step_name(5) + "/state.json", R"({"recipe": "of 5"})");
  write("ckpt/" + step_name(9) + "/state.json", R"({"recipe": "of 9"})");
  EXPECT_EQ(before(), "the checkpoint: of 9");
  write("ckpt/" + step_name(9) + "/state.json", R"({"recipe": )");
  EXPECT_EQ(before(), "the checkpoint: of 5");
  write("ckpt/" + step_name(5) + "/state.json", "");
  EXPECT_EQ(before(), "") << "told when they are read whole";
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
