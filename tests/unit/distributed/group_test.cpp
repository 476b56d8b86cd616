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

#include <limits>
#include <mutex>

namespace trainer::distributed {
namespace {

using std::chrono::seconds;
using testing::message_of;
using testing::run_ranks;

void expect_good(const std::vector<std::exception_ptr>& problems) {
  for (std::size_t rank = 0; rank < problems.size(); ++rank)
    EXPECT_FALSE(problems[rank]) << "rank " << rank << ": " << message_of(problems[rank]);
}

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
