/// @file What runs the kernels on the CPU finds the faults planted in one (faults.hpp), and none where there is none.
#include "faults.hpp"

#include <cmath>

#include "buffers.hpp"

namespace trainer::kernels::test {
namespace {

struct Found {
  Planted fault;
  const char *plain, *watched;  ///< part of what is said, without and with the watch; null: not found
};
constexpr const char *kRace = "a race", *kUnwritten = "a read of what nobody has written";
const Found kFaults[] = {
    {Planted::ends_before_barrier, "is not reached by all", "is not reached by all"},
    {Planted::lane_missing, "is not reached by all", "is not reached by all"},
    {Planted::shuffles_on_both_sides_of_if, "meet at different calls", "meet at different calls"},
    {Planted::half_a_mask, "is not in the mask", "is not in the mask"},
    {Planted::two_barriers, "meet at different barriers", "meet at different barriers"},
    {Planted::part_unwritten, "NaN", kUnwritten},
    {Planted::no_barrier, "NaN", kUnwritten},
    {Planted::barrier_of_warp_alone, "other bits", kRace},
    {Planted::reads_beyond, nullptr, "a read out of bounds"},
    {Planted::writes_beyond, nullptr, "a write out of bounds"},
    {Planted::blocks_write_one_place, nullptr, "a race of two writes"},
    {Planted::reads_result_through_cache, nullptr, "a read through the read-only cache"},
    {Planted::pack_not_aligned, "are not aligned", "are not aligned"},
};

constexpr int kCount = 512;

/// What is found, empty if nothing: a fault, NaN, or other bits than in the first order.
std::string found(Planted fault) {
  using on_cpu::Order;
  Buffer<float> x(Role::input, kCount);
  x.random(1);
  std::vector<float> first;
  for (const Order order : {Order::forward, Order::reverse, Order::random, Order::greedy_down, Order::greedy_up}) {
    Buffer<float> y(Role::output, kCount);
    on_cpu::options = {order};
    try {
      EXPECT_EQ(start_planted(fault, x.data(), y.data(), kCount), 0);
    } catch (const on_cpu::Fault& what) {
      return what.what();
    }
    if (std::isnan(y[0])) return "NaN";
    if (first.empty()) first.assign(y.data(), y.data() + kCount);
    if (std::memcmp(first.data(), y.data(), y.size()) != 0) return "other bits in another order";
  }
  return {};
}

TEST(PlantedFaults, NothingIsFoundWhereThereIsNone) { EXPECT_EQ(found(Planted::none), ""); }

TEST(PlantedFaults, EachIsFound) {
  for (const Found& f : kFaults) {
    const char* const expected = on_cpu::watching() ? f.watched : f.plain;
    if (expected == nullptr) continue;
    const std::string what = found(f.fault);
    EXPECT_NE(what.find(expected), std::string::npos) << "fault " << static_cast<int>(f.fault) << ", found: " << what;
  }
}

/// A grid beyond what a GPU takes is refused as there, and the error is told once.
TEST(PlantedFaults, AGridThatAGpuRefuses) {
  Buffer<float> x(Role::input, 256), y(Role::output, 256);
  EXPECT_NE(start_planted(Planted::none, x.data(), y.data(), 0), 0);
  EXPECT_EQ(start_planted(Planted::none, x.random(1).data(), y.data(), 256), 0);
}

}  // namespace
}  // namespace trainer::kernels::test
