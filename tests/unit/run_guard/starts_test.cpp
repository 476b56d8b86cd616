/// @file Two runs that start in one folder at the same moment, each a process of its own: one gets it, whichever.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <checkpoint/run_lock.hpp>
#include <trainer/sdk/error.hpp>

#include <array>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace trainer::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int kPairs = 50;
constexpr const char* kHolds = "holds";

/// A pipe; both ends are closed at the end.
class Pipe {
 public:
  Pipe() {
    if (::pipe(ends_.data()) != 0) throw std::runtime_error("no pipe");
  }
  ~Pipe() {
    close(0);
    close(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close(std::size_t end) {
    if (ends_.at(end) >= 0) ::close(ends_.at(end));
    ends_.at(end) = -1;
  }
  void write(const std::string& text) const {
    EXPECT_EQ(::write(ends_[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  /// A line, without its end; what there is when the other side closes.
  [[nodiscard]] std::string read_line() const {
    std::string line;
    for (char one = 0; ::read(ends_[0], &one, 1) == 1 && one != '\n';) line += one;
    return line;
  }

 private:
  std::array<int, 2> ends_{-1, -1};
};

/// A process that says when it is ready, waits for `start` to be closed, tries to take the folder, says what came of it
/// and keeps what it has until `end` is closed.
class Starter {
 public:
  Starter(const fs::path& run, Pipe& start, Pipe& end) : process_(::fork()) {
    if (process_ != 0) {
      says_.close(1);
      return;
    }
    start.close(1);
    end.close(1);
    try {
      says_.write("ready\n");
      static_cast<void>(start.read_line());
      const RunLock lock(run, {.beats = false});
      says_.write(std::string(kHolds) + "\n");
      static_cast<void>(end.read_line());
    } catch (const Error& error) {
      says_.write(error.code() + "\n");
    } catch (const std::exception& error) {
      says_.write(std::string("uncaught: ") + error.what() + "\n");
    }
    ::_exit(0);
  }
  ~Starter() { ::waitpid(process_, nullptr, 0); }
  Starter(const Starter&) = delete;
  Starter& operator=(const Starter&) = delete;
  [[nodiscard]] std::string says() const { return says_.read_line(); }

 private:
  Pipe says_;
  pid_t process_;
};

TEST(RunLock, OfTwoSimultaneousStartsExactlyOneHoldsTheFolder) {
  std::string name = (fs::temp_directory_path() / "trainer-starts-XXXXXX").string();
  const fs::path folder = ::mkdtemp(name.data());
  std::array<int, 2> won{};
  for (int pair = 0; pair < kPairs; ++pair) {
    const fs::path run = folder / std::to_string(pair) / "run";  // neither is there: both make them
    Pipe start, end;
    const Starter first(run, start, end), second(run, start, end);
    for (const Starter* one : {&first, &second}) EXPECT_EQ(one->says(), "ready");
    start.close(1);
    const std::string one = first.says(), other = second.says();
    EXPECT_TRUE((one == kHolds && other == "RUN_LOCKED") || (one == "RUN_LOCKED" && other == kHolds))
        << "pair " << pair << ": " << one << ", " << other;
    EXPECT_TRUE(RunLock::holder(run)) << pair;
    ++won.at(one == kHolds ? 0 : 1);
    end.close(1);
  }
  std::printf("%d pairs, one holder each: the first %d times, the second %d\n", kPairs, won[0], won[1]);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace trainer::checkpoint
