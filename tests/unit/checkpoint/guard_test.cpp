/// @file The lock on a run's folder and the signals that ask it to stop.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>

#include <checkpoint/run_lock.hpp>
#include <checkpoint/signals.hpp>
#include <optional>
#include <string>
#include <thread>
#include <trainer/sdk/error.hpp>
#include <vector>

#include "fixture.hpp"

namespace trainer::checkpoint {
namespace {

std::string attempt(const fs::path& folder) {
  try {
    const RunLock lock(folder);
    return "";
  } catch (const Error& error) {
    return std::to_string(static_cast<int>(error.exit_code())) + " " + error.code() + " " + error.what();
  }
}

TEST(RunLock, SecondHolderIsRefusedAndToldWhoHoldsIt) {
  const Folder folder;
  const fs::path run = folder.path() / "new" / "run";
  std::optional<RunLock> lock(run);
  const std::string expected =
      "77 RUN_LOCKED " + run.string() + ": another run is writing here (pid " + std::to_string(::getpid()) + " on ";
  for (const std::string& message : {attempt(run), in_child([&] { return attempt(run); })}) {
    EXPECT_TRUE(message.starts_with(expected)) << message;
    EXPECT_TRUE(message.ends_with("Z); wait for it, or choose another run.output")) << message;
  }
  lock.reset();
  EXPECT_EQ(attempt(run), "");
}

/// `trainer check` holds the lock while it looks who does.
TEST(RunLock, OneThatLooksWhoHoldsItDoesNotStandInTheWay) {
  const Folder folder;
  write_text(folder.path() / ".lock", "");
  const int fd = ::open((folder.path() / ".lock").c_str(), O_RDONLY);
  ASSERT_EQ(::flock(fd, LOCK_SH | LOCK_NB), 0);
  std::thread looking([fd] {
    ::usleep(5'000);
    ::close(fd);
  });
  EXPECT_EQ(attempt(folder.path()), "");
  looking.join();
}

TEST(RunLock, DiesWithItsProcess) {
  const Folder folder;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const RunLock lock(folder.path());
    if (::write(ends[1], "x", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char ready = 0;
  ASSERT_EQ(::read(ends[0], &ready, 1), 1);
  EXPECT_TRUE(attempt(folder.path()).find("pid " + std::to_string(child)) != std::string::npos);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(attempt(folder.path()), "");
  ::close(ends[0]), ::close(ends[1]);
}

TEST(RunLock, FolderThatCannotBeMade) {
  const Folder folder;
  write_text(folder.path() / "file", "");
  EXPECT_TRUE(attempt(folder.path() / "file").starts_with("74 ")) << attempt(folder.path() / "file");
}

/// As a terminal's shell starts a program, whatever started the tests.
void start_stopping_on_signals() {
  for (const int number : {SIGINT, SIGHUP}) ::signal(number, SIG_DFL);
  catch_stop_signals();
}

/// Sends it as a terminal or a scheduler does, and waits until it is seen: another thread takes it.
void send(int number, int expected) {
  ::kill(::getpid(), number);
  for (int i = 0; i < 5000 && stop_signal() != expected; ++i) ::usleep(1000);
}

TEST(Signals, OneAsksToStop) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string result = in_child([number] {
      start_stopping_on_signals();
      if (stop_signal() != 0) return std::string("asked before any signal");
      send(number, number);
      return stop_signal() == number ? std::string() : "got " + std::to_string(stop_signal());
    });
    EXPECT_EQ(result, "") << number;
  }
}

/// Where code computes no handler may run: oneDNN keeps values where its frame goes (signals.hpp).
TEST(Signals, TheThreadThatComputesGetsNone) {
  const std::string result = in_child([] {
    start_stopping_on_signals();
    sigset_t blocked;
    std::string missing;
    const auto look = [&] {
      ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
      for (const int number : {SIGINT, SIGTERM, SIGHUP})
        if (sigismember(&blocked, number) != 1) missing += std::to_string(number) + " ";
    };
    look();
    std::thread(look).join();
    return missing;
  });
  EXPECT_EQ(result, "");
}

TEST(Signals, WhatTheStarterHasIgnoredStaysIgnored) {
  const std::string result = in_child([] {
    ::signal(SIGHUP, SIG_IGN);
    ::signal(SIGINT, SIG_IGN);
    catch_stop_signals();
    ::raise(SIGHUP);
    ::raise(SIGINT);
    sigset_t blocked;
    ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    for (const int number : {SIGHUP, SIGINT}) {
      struct sigaction now {};
      if (::sigaction(number, nullptr, &now) != 0 || now.sa_handler != SIG_IGN) return std::string("a handler");
      if (sigismember(&blocked, number) == 1) return std::string("blocked");
    }
    ::usleep(20'000);
    if (stop_signal() != 0) return "asked to stop by " + std::to_string(stop_signal());
    send(SIGTERM, SIGTERM);
    return stop_signal() == SIGTERM ? std::string() : "SIGTERM is not seen";
  });
  EXPECT_EQ(result, "");
}

/// How a process ends that gets these signals one after the other; 3 when none of them ends it.
int end_after(const std::vector<int>& numbers) {
  constexpr int kNone = 3;
  const pid_t child = ::fork();
  if (child == 0) {
    start_stopping_on_signals();
    send(numbers.front(), numbers.front());
    for (std::size_t i = 1; i < numbers.size(); ++i) {
      ::kill(::getpid(), numbers[i]);
      ::usleep(300'000);
    }
    ::_exit(stop_signal() == numbers.front() ? kNone : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Signals, TheSecondInterruptEndsAtOnce) {
  EXPECT_EQ(end_after({SIGINT, SIGINT}), 130);
  EXPECT_EQ(end_after({SIGTERM, SIGINT, SIGINT}), 130);
  EXPECT_EQ(end_after({SIGTERM, SIGTERM, SIGHUP}), 3) << "a scheduler may send it twice: still only a request";
  EXPECT_EQ(end_after({SIGTERM, SIGINT}), 3) << "a user's first";
}

}  // namespace
}  // namespace trainer::checkpoint
