#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <base/files.hpp>
#include <cli/standard_streams.hpp>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>

namespace trainer::cli {
namespace {

/// Prints more than stdout's buffer holds to a file that may have 4096 bytes, and ends when it may have more again.
[[noreturn]] void print_too_much(const std::filesystem::path& file) {
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  const rlim_t before = limit.rlim_cur;
  if (std::freopen(file.c_str(), "w", stdout) == nullptr) ::_exit(1);
  limit.rlim_cur = 4096;
  ::setrlimit(RLIMIT_FSIZE, &limit);
  for (int i = 0; i < 3; ++i) std::fputs(std::string(4096, 'x').c_str(), stdout);
  limit.rlim_cur = before;
  ::setrlimit(RLIMIT_FSIZE, &limit);
  ::_exit(after_output(0));
}

TEST(StandardStreams, AFileThatWasCutOffHoldsNothingButResults) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("trainer-streams-" + std::to_string(::getpid()));
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) print_too_much(file);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  const std::string text = read_file(file, 1 << 20, "");
  std::filesystem::remove(file);
  EXPECT_EQ(WEXITSTATUS(status), 74);
  EXPECT_GE(text.size(), 4096u);
  EXPECT_EQ(text.find_first_not_of('x'), std::string::npos) << "beside the results";
}

}  // namespace
}  // namespace trainer::cli
