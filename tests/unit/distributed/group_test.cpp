/// @file What ranks do together while all is well: texts, averages in the order of ranks, restarts.
#include <gtest/gtest.h>
#include <support/groups.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <condition_variable>
#include <limits>
#include <map>
#include <mutex>

namespace trainer::distributed {
namespace {

using std::chrono::seconds;
using testing::expect_good;
using testing::message_of;
using testing::run_ranks;

TEST(Group, OfOne) {
  Group& group = Group::alone();
  EXPECT_TRUE(group.writer());
  EXPECT_EQ(group.from_writer("text"), "text");
  EXPECT_EQ(group.first(5).rank, 0);
  EXPECT_EQ(group.first(0).rank, -1);
  const at::Tensor tensor = at::full({3}, 2.0);
  EXPECT_EQ(group.average({tensor}).rank, -1);
  EXPECT_TRUE(at::equal(tensor, at::full({3}, 2.0)));
  EXPECT_TRUE(group.joined(tensor).is_same(tensor));
  group.barrier();
  group.require_same("the recipe", "x");
  EXPECT_THROW(group.together([] { throw Error(ExitCode::io, "full"); }), Error);
}

/// torchrun's store outlives the processes that it starts again (--max-restarts).
TEST(Group, ARestartDoesNotFindWhatTheAttemptBeforeLeft) {
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.waitWorkers = false;
  options.port = 0;
  const c10d::TCPStore agent("127.0.0.1", options);
  for (const char* attempt : {"0", "1"}) {
    const auto place_of = [&](int rank) {
      Place place = testing::place(rank, 2, agent.getPort());
      place.launchers_store = true;
      place.attempt = attempt;
      return place;
    };
    expect_good(testing::run_at(2, seconds(20), place_of, [](Group& group) {
      EXPECT_EQ(group.from_writer("from " + std::to_string(group.rank())), "from 0");
    }));
  }
}

TEST(Group, TextsAndNumbers) {
  expect_good(run_ranks(3, seconds(20), [](Group& group) {
    EXPECT_EQ(group.from_writer("from " + std::to_string(group.rank())), "from 0");
    const std::string own(static_cast<std::size_t>(group.rank()) * 1000, 'a');
    const auto texts = group.texts(own);
    ASSERT_EQ(texts.size(), 3U);
    EXPECT_EQ(texts[0], "");
    EXPECT_EQ(texts[2].size(), 2000U);
    const First first = group.first(group.rank() == 0 ? 0 : group.rank() * 10);
    EXPECT_EQ(first.rank, 1);
    EXPECT_EQ(first.value, 10);
    EXPECT_EQ(group.first(0).rank, -1);
    const at::Tensor joined = group.joined(at::full({2}, group.rank(), at::kDouble));
    EXPECT_TRUE(at::equal(joined, at::cat({at::full({2}, 0.0, at::kDouble), at::full({2}, 1.0, at::kDouble),
                                           at::full({2}, 2.0, at::kDouble)})));
  }));
}

TEST(Group, DifferencesAreNamed) {
  const auto problems = run_ranks(2, seconds(20), [](Group& group) {
    group.require_same("the data", "same");
    group.require_same("the recipe", "of " + std::to_string(group.rank()));
  });
  for (const auto& problem : problems) {
    const std::string text = message_of(problem);
    EXPECT_NE(text.find("the recipe of rank 1"), std::string::npos) << text;
    EXPECT_NE(text.find("differs from that of rank 0"), std::string::npos) << text;
  }
}

/// What each rank brings; three buckets, sizes that no number of ranks divides.
std::vector<at::Tensor> gradients(int rank) {
  std::vector<at::Tensor> all;
  at::manual_seed(static_cast<uint64_t>(rank) + 1);
  for (const int64_t size : {int64_t{7}, int64_t{9} << 20, int64_t{1}, int64_t{1001}})
    all.push_back(at::randn({size}) * (rank == 1 ? 1e4 : 1.0));
  return all;
}

/// Sum in the order of ranks, divided by their number: what `average` promises, bit for bit.
void averages_in_order_of_ranks(int ranks) {
  std::vector<std::vector<at::Tensor>> brought;
  for (int rank = 0; rank < ranks; ++rank) brought.push_back(gradients(rank));
  std::vector<at::Tensor> expected;
  for (std::size_t i = 0; i < brought[0].size(); ++i) {
    at::Tensor sum = brought[0][i].clone();
    for (int rank = 1; rank < ranks; ++rank) sum += brought[static_cast<std::size_t>(rank)][i];
    expected.push_back(sum / static_cast<double>(ranks));
  }
  expect_good(run_ranks(ranks, seconds(60), [&](Group& group) {
    const auto& own = brought[static_cast<std::size_t>(group.rank())];
    EXPECT_EQ(group.average(own).rank, -1);
    for (std::size_t i = 0; i < own.size(); ++i) EXPECT_TRUE(at::equal(own[i], expected[i])) << i;
  }));
}

TEST(Group, TwoRanksAverageInOrder) { averages_in_order_of_ranks(2); }
TEST(Group, ThreeRanksAverageInOrder) { averages_in_order_of_ranks(3); }
TEST(Group, FourRanksAverageInOrder) { averages_in_order_of_ranks(4); }

/// Ranks that are threads hand each other their tensors: a lane without a library.
class ThreadLane final : public Lane {
 public:
  struct Table {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<int, at::Tensor> brought;
    int taken = 0, rounds = 0;
  };
  ThreadLane(Table& table, int rank, int ranks) : table_(table), rank_(rank), ranks_(ranks) {}
  void gather(at::Tensor& all, at::Tensor& own, const std::function<void()>& waiting) override {
    exchange(own, waiting, [&](int rank, const at::Tensor& theirs) { all.view({ranks_, -1})[rank].copy_(theirs); });
  }
  void swap(at::Tensor& out, at::Tensor& in, const std::function<void()>& waiting) override {
    exchange(in, waiting, [&](int rank, const at::Tensor& theirs) { out[rank].copy_(theirs[rank_]); });
  }

 private:
  template <typename Take>
  void exchange(const at::Tensor& own, const std::function<void()>& waiting, const Take& take) {
    std::unique_lock lock(table_.mutex);
    const auto wait = [&](const auto& done) {
      while (!table_.changed.wait_for(lock, std::chrono::milliseconds(50), done)) waiting();
    };
    wait([&] { return !table_.brought.contains(rank_); });  // the round before
    table_.brought[rank_] = own;
    table_.changed.notify_all();
    wait([&] { return static_cast<int>(table_.brought.size()) == ranks_; });
    for (const auto& [rank, theirs] : table_.brought) take(rank, theirs);
    const int round = table_.rounds;
    if (++table_.taken == ranks_) table_.brought.clear(), table_.taken = 0, ++table_.rounds;
    table_.changed.notify_all();
    wait([&] { return table_.rounds > round; });
  }
  Table& table_;
  int rank_, ranks_;
};

ThreadLane::Table& table() {
  static auto& instance = *new ThreadLane::Table;
  return instance;
}

Lane* open_thread_lane(const c10::intrusive_ptr<c10d::Store>&, int rank, int ranks) {
  return new ThreadLane(table(), rank, ranks);
}

TEST(Group, ALaneGivesTheSameBits) {
  constexpr int kRanks = 3;
  std::vector<std::vector<at::Tensor>> by_gloo(kRanks), by_lane(kRanks);
  for (auto* results : {&by_gloo, &by_lane}) {
    for (int rank = 0; rank < kRanks; ++rank) (*results)[static_cast<std::size_t>(rank)] = gradients(rank);
    expect_good(run_ranks(kRanks, seconds(60), [&](Group& group) {
      if (results == &by_lane) group.use(at::kCPU, &open_thread_lane);
      EXPECT_TRUE(group.carries(at::kCPU));
      EXPECT_EQ(group.average((*results)[static_cast<std::size_t>(group.rank())]).rank, -1);
    }));
  }
  EXPECT_GT(table().rounds, 0);
  for (int rank = 0; rank < kRanks; ++rank)
    for (std::size_t i = 0; i < by_gloo[0].size(); ++i)
      EXPECT_TRUE(at::equal(by_gloo[0][i], by_lane[static_cast<std::size_t>(rank)][i])) << rank << " " << i;
}

TEST(Group, NonFiniteGradientsAreTracedToTheirRank) {
  expect_good(run_ranks(3, seconds(20), [](Group& group) {
    at::Tensor own = at::full({5}, 1.0);
    if (group.rank() > 0) own[3] = std::numeric_limits<double>::infinity();
    EXPECT_EQ(group.average({own}).rank, 1);
    EXPECT_FALSE(std::isfinite(own[3].item<double>()));
    EXPECT_EQ(own[0].item<double>(), 1.0);
  }));
}

}  // namespace
}  // namespace trainer::distributed
