#include <metrics/log_file.hpp>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <base/files.hpp>
#include <trainer/sdk/error.hpp>

#include <cmath>
#include <cstring>
#include <sstream>

namespace trainer::metrics {
namespace {

class LogFileTest : public testing::Test {
 protected:
  LogFileTest() { std::filesystem::remove(file_); }
  ~LogFileTest() override { std::filesystem::remove(file_); }
  std::string content() const { return read_file(file_, 1 << 20, "log"); }
  std::filesystem::path file_ =
      std::filesystem::temp_directory_path() /
      ("log-" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()) + ".jsonl");
};

TEST_F(LogFileTest, OneObjectALineInTheGivenOrder) {
  LogFile log(file_, 0);
  log.write(1,
            {{"loss", 0.1}, {"lr", 1e-4}, {"event", std::string("a \"b\"\n")}, {"count", int64_t{7}}, {"last", false}});
  EXPECT_EQ(content(),
            "{\"step\":1,\"loss\":0.1,\"lr\":0.0001,\"event\":\"a \\\"b\\\"\\n\",\"count\":7,\"last\":false}\n");
  log.write(2, {{"loss", std::nan("")}, {"norm", INFINITY}});
  EXPECT_TRUE(content().ends_with("}\n{\"step\":2,\"loss\":null,\"norm\":null}\n"));
  log.write(3, {{"bytes", LogGroups{{"sim:1", {{"step", 2}, {"kept", 1}}}, {"cpu", {{"step", 3}}}}}});
  EXPECT_TRUE(content().ends_with("{\"step\":3,\"bytes\":{\"sim:1\":{\"step\":2,\"kept\":1},\"cpu\":{\"step\":3}}}\n"));
}

TEST_F(LogFileTest, EachLineIsThereAtOnce) {
  LogFile log(file_, 0);
  for (int step = 1; step < 4; ++step) {
    log.write(step, {});
    EXPECT_TRUE(content().ends_with("{\"step\":" + std::to_string(step) + "}\n"));
  }
}

TEST_F(LogFileTest, AResumeCutsWhatCameAfterItsCheckpoint) {
  write_file_atomically(
      file_, "{\"event\":\"start\"}\n{\"step\":1}\n{\"step\":2}\n{\"event\":\"saved\"}\n{\"step\":3}\n{\"st");
  {
    LogFile log(file_, 2);
    log.write(3, {{"again", true}});
  }
  EXPECT_EQ(content(),
            "{\"event\":\"start\"}\n{\"step\":1}\n{\"step\":2}\n{\"event\":\"saved\"}\n{\"step\":3,\"again\":true}\n");
  { LogFile log(file_, 100); }  // nothing lies after it
  EXPECT_TRUE(content().ends_with("true}\n"));
  { LogFile log(file_, 0); }
  EXPECT_EQ(content(), "{\"event\":\"start\"}\n");
}

TEST_F(LogFileTest, ALinkIsNotFollowed) {
  const std::filesystem::path other = file_.string() + ".other";
  const std::string rows = "{\"step\":1}\n{\"step\":2}\n";
  write_file_atomically(other, rows);
  std::filesystem::create_symlink(other, file_);
  EXPECT_THROW(LogFile(file_, 1), Error);
  EXPECT_EQ(read_file(other, 1 << 20, "log"), rows);
  std::filesystem::remove(other);
}

uint64_t kept_of(const std::string& text, int64_t step) {
  std::istringstream log(text);
  return kept_bytes(log, step);
}

TEST_F(LogFileTest, KeepsLinesItCannotRead) {
  EXPECT_EQ(kept_of("{\"step\":1}\nnoise\n{\"step\":2}\n", 1), 17U);
  EXPECT_EQ(kept_of("{\"step\":1", 5), 0U);
  EXPECT_EQ(kept_of("[1]\n{\"step\":\"9\"}\n", 1), 17U);
  EXPECT_EQ(kept_of("", 1), 0U);
}

TEST_F(LogFileTest, AStepOfAnySizeIsALaterOne) {
  for (const char* step :
       {"9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616", "1e300", "1.5"})
    EXPECT_EQ(kept_of("{\"step\":1}\n{\"step\":" + std::string(step) + "}\n{\"step\":1}\n", 1), 11U) << step;
  for (const char* step : {"-9223372036854775808", "-1", "1", "1.0", "-1e300", "null"})
    EXPECT_EQ(kept_of("{\"step\":" + std::string(step) + "}\n", 1), 10 + std::strlen(step)) << step;
}

TEST_F(LogFileTest, LinesMayBeLongerThanAPieceThatIsRead) {
  const std::string filler(3 << 20, 'x');
  const std::string rows = "{\"a\":\"" + filler + "\",\"step\":1}\n";
  EXPECT_EQ(kept_of(rows + "{\"step\":2}\n", 1), rows.size());
  EXPECT_EQ(kept_of(rows, 0), 0U);
  const std::string none = filler + filler + filler + filler + filler + filler + "\n";  // 18 MiB
  EXPECT_EQ(kept_of(none + "{\"step\":1}\n{\"step\":2}\n", 1), none.size() + 11);
}

/// A limit on file sizes stands for a disk that is full in the middle of a line.
TEST_F(LogFileTest, ALineThatFindsNoRoomLeavesNothing) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    LogFile log(file_, 0);
    log.write(1, {});
    const rlimit limit{17, 17};  // a line and five bytes
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(2);
    try {
      log.write(2, {});
      ::_exit(3);
    } catch (const Error& error) {
      ::_exit(error.exit_code() == ExitCode::io && content() == "{\"step\":1}\n" ? 0 : 4);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(LogFileTest, AFifoIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo(file_.c_str(), 0600), 0);
  EXPECT_THROW(LogFile(file_, 0), Error);
}

TEST(LogFile, AFolderThatIsNotThereIsAnError) {
  try {
    LogFile log("/nowhere/log.jsonl", 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::io);
    EXPECT_STREQ(error.what(), "cannot open /nowhere/log.jsonl: No such file or directory");
  }
}

}  // namespace
}  // namespace trainer::metrics
