/// @file What the simulated devices have and the CPU has not: memory of their own, limits, mixed-device errors, streams
/// and clocks.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "device_fixture.hpp"

namespace trainer::sim {
namespace {

at::TensorOptions on(int index) { return at::TensorOptions().device(device(index)); }

template <typename Function>
std::string error_of(const Function& function) {
  try {
    function();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

class Device : public ::testing::Test {
 protected:
  void SetUp() override {
    init_once();
    set_poison(false);
    set_timeline(false);
    for (int d = 0; d < devices(); ++d) set_capacity(d, 0);
  }
};

TEST_F(Device, HasANameAndABound) {
  EXPECT_EQ(c10::Device("sim:1"), device(1));
  EXPECT_EQ(device(2).str(), "sim:2");
  EXPECT_NE(error_of([] { at::empty({1}, on(3)); }).find("invalid device ordinal"), std::string::npos);
}

TEST_F(Device, RefusesAnOperationThatMixesDevices) {
  const at::Tensor a = at::ones({3, 3}, on(0)), b = at::ones({3, 3}, on(1)), host = at::ones({3, 3});
  for (const std::string& text : {error_of([&] { a + b; }), error_of([&] { a.mm(host); }), error_of([&] { host + a; }),
                                  error_of([&] { at::Tensor(a).add_(b); })})
    EXPECT_NE(text.find("Expected all tensors to be on the same device"), std::string::npos) << text;
  EXPECT_EQ((a + at::zeros({}) + 2).sum().item<float>(), 27) << "a number of the host passes, as on CUDA";
}

TEST_F(Device, CountsItsBytesExactly) {
  const int64_t before = stats(1).current, host = stats(-1).current;
  reset_peak(1);
  {
    const at::Tensor a = at::zeros({1000}, on(1));
    EXPECT_EQ(stats(1).current - before, 4000);
    at::Tensor view = (a + 1).slice(0, 2);
    EXPECT_EQ(stats(1).current - before, 8000);
    view.reset();
    EXPECT_EQ(stats(1).current - before, 4000);
  }
  EXPECT_EQ(stats(1).current, before);
  EXPECT_EQ(stats(1).peak - before, 8000);
  EXPECT_EQ(stats(-1).current, host);
}

TEST_F(Device, RunsOutOfMemoryAsCudaDoes) {
  const at::Tensor kept = at::ones({1000}, on(2));
  set_capacity(2, stats(2).current + 1000);
  EXPECT_NE(error_of([] { at::empty({251}, on(2)); }).find("out of memory. Tried to allocate 1004 bytes. sim:2 has"),
            std::string::npos);
  EXPECT_THROW(kept + 1, c10::OutOfMemoryError) << "also for the result of an operation";
  EXPECT_NO_THROW(at::empty({250}, on(2)));
}

TEST_F(Device, PoisonsWhatIsNotWritten) {
  EXPECT_EQ(at::zeros({4}, on(0)).sum().item<float>(), 0);
  set_poison(true);
  EXPECT_TRUE(at::empty({4}, on(0)).isnan().all().item<bool>());
  EXPECT_EQ(at::ones({4}, on(0)).sum().item<float>(), 4);
}

class Clock : public Device {
 protected:
  void SetUp() override {
    Device::SetUp();
    set_cost({.flops = 1e6, .bytes = kInfinite, .launch = 0, .link = 4e6, .link_latency = 0});
    set_timeline(true);
    reset_clocks();
  }
  void TearDown() override { set_timeline(false); }
  c10::impl::VirtualGuardImpl guard_{c10::DeviceType::PrivateUse1};
};

TEST_F(Clock, AnOperationTakesItsFlops) {
  const at::Tensor a = at::ones({10, 100}, on(0)), b = at::ones({100, 50}, on(0));
  a.mm(b);
  EXPECT_DOUBLE_EQ(makespan(), 0.1);  // 2 x 10 x 100 x 50 at 1e6 a second
  EXPECT_DOUBLE_EQ(busy(0), 0.1);
  EXPECT_DOUBLE_EQ(busy(1), 0);
}

TEST_F(Clock, ACopyWaitsForItsSourceAndTheTargetForTheCopy) {
  const at::Tensor a = at::ones({100, 100}, on(0)), b = a.mm(a);  // 2 s
  const at::Tensor there = b.to(device(1));                       // 10 ms
  EXPECT_DOUBLE_EQ(makespan(), 2.01);
  there.mm(there);
  EXPECT_DOUBLE_EQ(makespan(), 4.01);
  EXPECT_TRUE(take_races().empty());
}

TEST_F(Clock, OnDefaultStreamsACopyHoldsBothDevices) {
  const at::Tensor a = at::ones({100, 100}, on(0)), far = at::ones({100, 100}, on(1));
  a.mm(a);
  far.to(device(0));
  far.mm(far);
  EXPECT_DOUBLE_EQ(makespan(), 4.01) << "the second product began after the copy, the copy after the first";
}

TEST_F(Clock, OnStreamsOfTheirOwnCopiesAndComputationOverlap) {
  const at::Tensor a = at::ones({100, 100}, on(0)), far = at::ones({100, 100}, on(1));
  a.mm(a);
  {
    const c10::StreamGuard here(guard_.getNewStream(device(0))), there(guard_.getNewStream(device(1)));
    far.to(device(0));
  }
  far.mm(far);
  EXPECT_DOUBLE_EQ(makespan(), 2.0);
}

TEST_F(Clock, AMissingSynchronisationIsFound) {
  const at::Tensor far = at::ones({100, 100}, on(1));
  const c10::Stream lane = guard_.getNewStream(device(0));
  at::Tensor arrived;
  c10::Event event(c10::DeviceType::PrivateUse1);
  {
    const c10::StreamGuard here(lane), there(guard_.getNewStream(device(1)));
    arrived = far.to(device(0));
    event.record(lane);
  }
  arrived.mm(arrived);
  EXPECT_EQ(take_races(), std::vector<std::string>{"aten::mm"});
  reset_clocks();
  {
    const c10::StreamGuard here(lane), there(guard_.getNewStream(device(1)));
    arrived = far.to(device(0));
    event.record(lane);
  }
  event.block(guard_.getStream(device(0)));
  arrived.mm(arrived);
  EXPECT_TRUE(take_races().empty());
}

/// A copy on a stream of its own reads what the computation may free meanwhile.
TEST_F(Clock, MemoryThatIsGivenAwayTooEarlyIsFound) {
  for (const bool recorded : {false, true}) {
    reset_clocks();
    at::Tensor source = at::ones({100, 100}, on(0));
    const c10::Stream lane = guard_.getNewStream(device(0));
    {
      const c10::StreamGuard there(guard_.getNewStream(device(1))), here(lane);
      source.to(device(1));
      if (recorded) source.record_stream(lane);
    }
    source.reset();
    EXPECT_EQ(take_early_reuses().size(), recorded ? 0U : 1U);
  }
}

TEST_F(Clock, OnlyACopyFromPageLockedMemoryLeavesTheHostFree) {
  const at::Tensor a = at::ones({100, 100}, on(0)), b = at::ones({100, 100}, on(1)), host = at::ones({100, 100});
  const at::Tensor pinned = host.pin_memory();
  EXPECT_TRUE(pinned.is_pinned());
  EXPECT_FALSE(host.is_pinned());
  const auto both = [&](const at::Tensor& from, bool non_blocking) {
    reset_clocks();
    a.mm(a);  // 2 s
    from.to(device(0), non_blocking);
    b.mm(b);
    return makespan();
  };
  EXPECT_DOUBLE_EQ(both(host, true), 4.01) << "the second device got its work when the first was through";
  EXPECT_EQ(take_waits(), std::vector<std::string>{"copy:-1>0"});
  EXPECT_DOUBLE_EQ(both(pinned, false), 4.01);
  EXPECT_DOUBLE_EQ(both(pinned, true), 2.01);
  EXPECT_TRUE(take_waits().empty());
}

TEST_F(Clock, TheLogNamesOperationsInOrder) {
  const at::Tensor a = at::ones({4, 4}, on(0));
  take_log();
  a.mm(a).to(device(1));
  std::vector<std::string> names;
  for (const Event& event : take_log()) names.push_back(event.op);
  ASSERT_GE(names.size(), 2U);
  EXPECT_EQ(names.front(), "aten::mm");
  EXPECT_EQ(names.back(), "copy:0>1");
}

}  // namespace
}  // namespace trainer::sim
