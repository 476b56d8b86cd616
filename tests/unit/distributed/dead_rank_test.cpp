/// @file The stop that a signal asks for, among processes of which one was killed: the others end and name it.
#include <gtest/gtest.h>
#include <support/groups.hpp>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <map>
#include <string>

namespace trainer::distributed {
namespace {

using std::chrono::seconds;

constexpr int kRanks = 3, kBeforeDeath = 2;
constexpr seconds kTimeout{20};

/// A process that agrees on signals step by step; the victim dies before one of them, and another rank gets SIGTERM
/// then. Writes what ended it, "code message".
[[noreturn]] void work(int rank, int port, int victim, int signalled, int out) {
  std::string text = "0 went on";
  try {
    Group group(testing::place(rank, kRanks, port), kTimeout);
    group.together([&] {
      for (int step = 1; step <= kBeforeDeath + 1; ++step) {
        group.progress("training, step " + std::to_string(step));
        if (step > kBeforeDeath && rank == victim) ::raise(SIGKILL);
        static_cast<void>(group.first(step > kBeforeDeath && rank == signalled ? SIGTERM : 0));
      }
    });
  } catch (const Error& error) {
    text = std::to_string(static_cast<int>(error.exit_code())) + " " + error.what();
  }
  const auto written = ::write(out, text.data(), text.size());
  ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
}

std::string read_all(int in) {
  std::string text;
  std::array<char, 4096> buffer;
  for (ssize_t got; (got = ::read(in, buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<std::size_t>(got));
  ::close(in);
  return text;
}

/// What each process left; "" of the victim.
std::map<int, std::string> ends_with(int victim, int signalled) {
  const int port = testing::free_port();
  std::map<int, std::pair<pid_t, int>> processes;
  for (int rank = 0; rank < kRanks; ++rank) {
    std::array<int, 2> pipe{};
    EXPECT_EQ(::pipe(pipe.data()), 0);
    const pid_t child = ::fork();
    if (child == 0) work(rank, port, victim, signalled, pipe[1]);
    ::close(pipe[1]);
    processes[rank] = {child, pipe[0]};
  }
  std::map<int, std::string> texts;
  for (auto& [rank, process] : processes) {
    texts[rank] = read_all(process.second);
    int status = 0;
    EXPECT_EQ(::waitpid(process.first, &status, 0), process.first);
    EXPECT_EQ(WIFSIGNALED(status) != 0, rank == victim) << rank;
  }
  return texts;
}

TEST(DeadRank, OfTheStopThatASignalAsksForIsNamedByTheOthers) {
  for (const auto& [victim, signalled] : {std::pair{2, 0}, std::pair{1, 2}, std::pair{0, 1}}) {
    SCOPED_TRACE("rank " + std::to_string(victim) + " is killed, rank " + std::to_string(signalled) + " gets a signal");
    const auto begin = std::chrono::steady_clock::now();
    for (const auto& [rank, text] : ends_with(victim, signalled)) {
      if (rank == victim) continue;
      const std::string code = std::to_string(static_cast<int>(ExitCode::collective_timeout)) + " ";
      EXPECT_EQ(text.rfind(code, 0), 0U) << text;
      EXPECT_NE(text.find("rank " + std::to_string(victim) + " (host "), std::string::npos) << text;
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kTimeout + seconds(15));
  }
}

}  // namespace
}  // namespace trainer::distributed
