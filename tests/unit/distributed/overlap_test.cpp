/// @file Exchanging gradients while the backward makes others: the same bits as afterwards, whatever comes when.
#include <gtest/gtest.h>
#include <sim/sim.hpp>
#include <support/groups.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sin.h>

#include <distributed/overlap.hpp>
#include <limits>
#include <thread>

namespace trainer::distributed {
namespace {

using std::chrono::seconds;
using testing::expect_good;
using testing::message_of;
using testing::run_ranks;

constexpr int64_t kWidth = 40, kLayers = 6, kMost = 100;  // two layers a piece, three pieces

/// Before the first backward of this program, whichever test has it.
class Devices : public ::testing::Environment {
 public:
  void SetUp() override { sim::init(2); }
};
const ::testing::Environment* const kDevices = ::testing::AddGlobalTestEnvironment(new Devices);

/// y = x w0 + ... : every layer's gradient comes when backward reaches it.
struct Layers {
  at::Device device;
  std::vector<at::Tensor> weights;
  explicit Layers(at::Device where = at::kCPU) : device(where) {
    for (int64_t i = 0; i < kLayers; ++i)
      weights.push_back(at::full({kWidth}, 0.5 + 0.1 * i, device).requires_grad_(true));
  }
  /// One micro-batch, which leaves out the layers from `used` on.
  void backward(uint64_t seed, int64_t used = kLayers, double scale = 1.0) {
    // Ranks are threads.
    at::Tensor x = at::sin(at::arange(kWidth, at::kFloat) * static_cast<double>(seed + 1)).to(device);
    for (int64_t i = 0; i < used; ++i) x = (x * weights[static_cast<std::size_t>(i)]).sin();
    (x.sum() * scale).backward();
  }
  [[nodiscard]] std::vector<at::Tensor> take() {
    std::vector<at::Tensor> gradients;
    for (at::Tensor& weight : weights) {
      gradients.push_back(weight.grad());
      weight.mutable_grad().reset();
    }
    return gradients;
  }
};

uint64_t seed_of(const Group& group, int step, int micro) {
  return static_cast<uint64_t>(100 * group.rank() + 10 * step + micro);
}

/// What the same backwards and Group::average give.
std::vector<at::Tensor> afterwards(Group& group, int step, const std::vector<int64_t>& used, at::Device device) {
  Layers layers(device);
  for (std::size_t micro = 0; micro < used.size(); ++micro)
    layers.backward(seed_of(group, step, static_cast<int>(micro)), used[micro]);
  std::vector<at::Tensor> gradients;
  for (at::Tensor& weight : layers.weights) {
    if (!weight.grad().defined()) weight.mutable_grad() = at::full({kWidth}, 0.0, device);
    gradients.push_back(weight.grad());
  }
  group.average(gradients);
  return gradients;
}

/// Steps in which each micro-batch uses as many layers as `used` says, on every rank.
void expect_equal_steps(int ranks, const std::vector<std::vector<int64_t>>& used, const std::vector<int64_t>& early,
                        bool simulated = false) {
  expect_good(run_ranks(ranks, seconds(60), [&](Group& group) {
    const at::Device device = simulated ? sim::device(group.rank()) : at::Device(at::kCPU);
    Layers layers(device);
    OverlappedAverage overlapped(group, layers.weights, kMost);
    for (std::size_t step = 0; step < used.size(); ++step) {
      overlapped.begin();
      for (std::size_t micro = 0; micro < used[step].size(); ++micro)
        layers.backward(seed_of(group, static_cast<int>(step), static_cast<int>(micro)), used[step][micro]);
      for (int wait = 0; wait < 1000 && overlapped.begun_early() < early[step]; ++wait)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      EXPECT_EQ(overlapped.begun_early(), early[step]) << "step " << step;
      EXPECT_EQ(overlapped.finish().rank, -1);
      EXPECT_EQ(overlapped.complete_early(), early[step]) << "step " << step;
      const std::vector<at::Tensor> expected = afterwards(group, static_cast<int>(step), used[step], device);
      const std::vector<at::Tensor> got = layers.take();
      for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << step << " " << i;
    }
  }));
}

TEST(Overlap, GivesTheBitsOfAnAverageAfterwards) {
  constexpr int64_t all = kLayers;
  for (const int ranks : {2, 3}) expect_equal_steps(ranks, {{all, all}, {all, all}, {all, all}}, {0, 3, 3});
}

/// The exchange is on a stream of its own, which waits for the gradients and is not behind the rest of the backward.
TEST(Overlap, OnDevicesItIsBesideTheBackward) {
  sim::Cost cost;
  cost.launch = 1e-3;
  sim::set_cost(cost);
  sim::reset_clocks();
  sim::set_timeline(true);
  constexpr int64_t all = kLayers;
  expect_equal_steps(2, {{all, all}, {all, all}, {all, all}}, {0, 3, 3}, /*simulated=*/true);
  sim::set_timeline(false);
  std::size_t packed = 0;
  for (const sim::Event& event : sim::take_log()) packed += event.op == "aten::cat" && event.stream != 0 ? 1U : 0U;
  EXPECT_GE(packed, 2U * 3 * 2) << "three pieces of two ranks in two steps at least";
  EXPECT_EQ(sim::take_races(), std::vector<std::string>{}) << "a gradient was sent before it was computed";
  EXPECT_EQ(sim::take_early_reuses(), std::vector<std::string>{});
  expect_equal_steps(2, {{all, all}, {all, 2}, {all, all}}, {0, 0, 3}, /*simulated=*/true);
}

/// The pieces of layers that came less often than before are left for the end; those that come more often are
/// exchanged again.
TEST(Overlap, GradientsThatComeMoreOrLessOftenThanBefore) {
  constexpr int64_t all = kLayers;
  expect_equal_steps(2, {{all, all}, {all, 2}, {all, all}, {2, all}, {2, 2}, {all, all}}, {0, 0, 3, 0, 0, 3});
}

TEST(Overlap, ANonFiniteGradientIsTracedToItsRank) {
  expect_good(run_ranks(3, seconds(60), [](Group& group) {
    Layers layers;
    OverlappedAverage overlapped(group, layers.weights, kMost);
    for (int step = 0; step < 2; ++step) {
      const bool bad = step == 1 && group.rank() == 2;
      overlapped.begin();
      layers.backward(1, kLayers, bad ? std::numeric_limits<double>::infinity() : 1.0);
      EXPECT_EQ(overlapped.finish().rank, step == 1 ? 2 : -1);
      static_cast<void>(layers.take());
    }
  }));
}

/// The thread of a rank whose backward throws waits for others, which wait for it.
TEST(Overlap, AnErrorInABackwardEndsAll) {
  const auto begin = std::chrono::steady_clock::now();
  const auto problems = run_ranks(2, seconds(60), [](Group& group) {
    Layers layers;
    OverlappedAverage overlapped(group, layers.weights, kMost);
    for (int step = 0; step < 3; ++step) {
      overlapped.begin();
      if (step == 2 && group.rank() == 1) {
        layers.backward(1, 3);
        throw Error(ExitCode::bad_input, "cat.png: damaged");
      }
      layers.backward(1);
      overlapped.finish();
      static_cast<void>(layers.take());
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(30));
  EXPECT_EQ(message_of(problems[1]), "rank 1: cat.png: damaged");
  EXPECT_NE(message_of(problems[0]).find("failed first: cat.png: damaged"), std::string::npos)
      << message_of(problems[0]);
}

}  // namespace
}  // namespace trainer::distributed
