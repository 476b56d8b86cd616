/// @file Ranks that fail, go away or never come: the others end and say who it was.
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <support/groups.hpp>

#include <chrono>

namespace trainer::distributed {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::free_port;
using testing::message_of;
using testing::place;
using testing::run_ranks;

ExitCode code_of(const std::exception_ptr& problem) {
  try {
    std::rethrow_exception(problem);
  } catch (const Error& error) {
    return error.exit_code();
  }
}

/// A rank that is gone closes its connection to the store, whose next answer to it would end the process by SIGPIPE.
TEST(FailingGroup, AClosedConnectionIsNoSignal) {
  run_ranks(2, seconds(60), [](Group& group) { group.barrier(); });
  struct sigaction now {};
  ASSERT_EQ(::sigaction(SIGPIPE, nullptr, &now), 0);
  EXPECT_EQ(now.sa_handler, SIG_IGN);
}

TEST(FailingGroup, AnErrorStopsAllAndNamesTheFirst) {
  const auto problems = run_ranks(3, seconds(60), [](Group& group) {
    group.barrier();
    if (group.rank() == 1) throw Error(ExitCode::bad_input, "cat.png: damaged");
    group.barrier();
  });
  EXPECT_EQ(message_of(problems[1]), "rank 1: cat.png: damaged");
  for (const std::size_t rank : {0U, 2U}) {
    ASSERT_TRUE(problems[rank]);
    EXPECT_EQ(code_of(problems[rank]), ExitCode::bad_input);
    const std::string text = message_of(problems[rank]);
    EXPECT_EQ(text.find("rank " + std::to_string(rank) + ": stopped, because rank 1 (host "), 0U) << text;
    EXPECT_NE(text.find("failed first: cat.png: damaged"), std::string::npos) << text;
  }
}

TEST(FailingGroup, ALostDeviceIsNamedAsOne) {
  const auto problems = run_ranks(2, seconds(60), [](Group& group) {
    if (group.rank() == 1) throw c10::AcceleratorError({}, 719, "CUDA error: unspecified launch failure");
    group.barrier();
  });
  for (const auto& problem : problems) {
    ASSERT_TRUE(problem);
    EXPECT_EQ(code_of(problem), ExitCode::device_lost);
  }
  EXPECT_NE(message_of(problems[1]).find("the last checkpoint is good"), std::string::npos) << message_of(problems[1]);
}

TEST(FailingGroup, ARankThatRunsOutOfMemorySaysWhatNeedsLess) {
  const auto problems = run_ranks(2, seconds(60), [](Group& group) {
    if (group.rank() == 1) throw c10::OutOfMemoryError({}, "CUDA out of memory. Tried to allocate 4 GB");
    group.barrier();
  });
  for (const auto& problem : problems) {
    ASSERT_TRUE(problem);
    EXPECT_EQ(code_of(problem), ExitCode::out_of_memory);
    EXPECT_NE(message_of(problem).find("Less memory: memory.strategies"), std::string::npos) << message_of(problem);
  }
}

TEST(FailingGroup, WorkBetweenCollectivesStopsToo) {
  const auto problems = run_ranks(2, seconds(60), [](Group& group) {
    if (group.rank() == 1) throw Error(ExitCode::io, "disk full");
    for (int i = 0; i < 600; ++i) {
      group.progress("latents " + std::to_string(i));
      group.check();
      std::this_thread::sleep_for(milliseconds(10));
    }
    FAIL() << "worked on for 6 s";
  });
  EXPECT_EQ(code_of(problems[0]), ExitCode::io);
}

TEST(FailingGroup, ARankThatDoesNotComeToACollectiveIsNamed) {
  const auto begin = std::chrono::steady_clock::now();
  const auto problems = run_ranks(3, seconds(2), [](Group& group) {
    group.progress("training, step 3");
    group.barrier();
    if (group.rank() == 2) std::this_thread::sleep_for(seconds(5));
    group.barrier();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(15));
  for (const auto& problem : problems) {
    ASSERT_TRUE(problem);
    EXPECT_EQ(code_of(problem), ExitCode::collective_timeout);
    const std::string text = message_of(problem);
    EXPECT_NE(text.find("rank 2 (host "), std::string::npos) << text;
    EXPECT_NE(text.find("its process lives, but got nothing done for 2 s; its last sign was: training, step 3"),
              std::string::npos)
        << text;
  }
}

TEST(FailingGroup, ARankThatWorksIsWaitedForBeyondTheTimeout) {
  const auto problems = run_ranks(2, seconds(2), [](Group& group) {
    for (int i = 0; group.rank() == 0 && i < 40; ++i) {
      group.progress("samples");
      std::this_thread::sleep_for(milliseconds(100));
    }
    group.barrier();
  });
  for (const auto& problem : problems) EXPECT_FALSE(problem) << message_of(problem);
}

TEST(FailingGroup, LongWorkThatGetsOnIsWaitedFor) {
  const auto problems = run_ranks(2, seconds(2), [](Group& group) {
    if (group.rank() == 1) {
      const LongWork work(group, "loading", LongWork::When::all_live);
      for (int tensor = 0; tensor < 40; ++tensor) {
        std::this_thread::sleep_for(milliseconds(100));
        beat();
      }
    }
    group.barrier();
  });
  for (const auto& problem : problems) EXPECT_FALSE(problem) << message_of(problem);
}

/// Its process lives and so does the thread that speaks for it.
TEST(FailingGroup, ARankThatHangsInLongWorkIsNamed) {
  const auto begin = std::chrono::steady_clock::now();
  const auto problems = run_ranks(2, seconds(2), [](Group& group) {
    if (group.rank() == 1) {
      const LongWork work(group, "loading the model", LongWork::When::all_live);
      std::this_thread::sleep_for(seconds(6));
    }
    group.barrier();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(15));
  for (const auto& problem : problems) {
    ASSERT_TRUE(problem);
    EXPECT_EQ(code_of(problem), ExitCode::collective_timeout);
    const std::string text = message_of(problem);
    EXPECT_NE(text.find("rank 1 (host "), std::string::npos) << text;
    EXPECT_NE(text.find("got nothing done for 2 s; its last sign was: loading the model"), std::string::npos) << text;
  }
}

TEST(FailingGroup, WhoNeverJoinsIsNamed) {
  try {
    const Group group(place(0, 2, free_port()), seconds(1));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::collective_timeout);
    EXPECT_EQ(std::string(error.what()), "rank 1 of 2 did not come within the 1 s of distributed.timeout");
  }
}

TEST(FailingGroup, NoRankZeroIsNamed) {
  try {
    const Group group(place(1, 2, free_port()), seconds(1));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::collective_timeout);
    EXPECT_EQ(std::string(error.what()).find("rank 0 did not come: nobody answered at 127.0.0.1:"), 0U) << error.what();
  }
}

}  // namespace
}  // namespace trainer::distributed
