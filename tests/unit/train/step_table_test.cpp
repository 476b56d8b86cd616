/// @file The profiler's table: every nanosecond of a step belongs to one part.
#include <gtest/gtest.h>
#include <execution/mark.hpp>
#include <run/step_table.hpp>

#include <cmath>
#include <numeric>

namespace trainer::execution {
namespace {

constexpr auto kRecompute = "torch::autograd::CppNode<trainer::(anonymous namespace)::Checkpoint>";

run::Span mark(const char* name, int64_t begin, int64_t end) { return {name, run::SpanKind::mark, begin, end, 1, 0}; }
run::Span node(const char* name, int64_t begin, int64_t end) { return {name, run::SpanKind::node, begin, end, 1, 0}; }
run::Span op(const char* name, int64_t begin, int64_t end, uint64_t id = 0) {
  return {name, run::SpanKind::op, begin, end, 1, id};
}
run::Span kernel(int64_t begin, int64_t end, uint64_t launched_by, run::SpanKind kind = run::SpanKind::kernel) {
  return {"a kernel", kind, begin, end, 7, launched_by};
}

int64_t host(const run::StepTable& table, run::StepPart part) {
  return std::llround(table.host_seconds[static_cast<std::size_t>(part)] * 1e9);
}
int64_t device(const run::StepTable& table, run::StepPart part) {
  return std::llround(table.device_seconds[static_cast<std::size_t>(part)] * 1e9);
}

TEST(StepTable, SortsOperatorsByThePartAroundThem) {
  const run::StepTable table = run::step_table({
      mark(kMarkStep, 0, 1000),
      mark(kMarkData, 0, 100),
      op("aten::randn", 10, 60),
      op("aten::linear", 100, 200),
      op("aten::addmm", 110, 190),
      op("aten::copy_", 200, 220),
      node(kRecompute, 300, 700),
      op("aten::mm", 310, 400),
      op("aten::empty", 400, 410),
      node("MmBackward0", 500, 600),
      op("aten::mm", 510, 590),
      mark(kMarkRanks, 700, 720),
      op("aten::add", 705, 715),
      mark(kMarkOptimizer, 800, 900),
      op("aten::copy_", 800, 850),
  });
  EXPECT_EQ(table.steps, 1);
  EXPECT_EQ(host(table, run::StepPart::data), 50);
  EXPECT_EQ(host(table, run::StepPart::forward), 100);
  EXPECT_EQ(host(table, run::StepPart::copies), 20);
  EXPECT_EQ(host(table, run::StepPart::recompute), 90);
  EXPECT_EQ(host(table, run::StepPart::backward), 80);
  EXPECT_EQ(host(table, run::StepPart::ranks), 10);
  EXPECT_EQ(host(table, run::StepPart::optimizer), 50) << "a copy of the optimiser's is the optimiser's";
  EXPECT_EQ(host(table, run::StepPart::host), 600);
  const double sum = std::accumulate(table.host_seconds.begin(), table.host_seconds.end(), 0.0);
  EXPECT_NEAR(sum, table.step_seconds, 1e-12);
  EXPECT_FALSE(table.has_device());
  EXPECT_EQ(table.calls, 8) << "all but what another operator calls";
  EXPECT_EQ(table.reads, 0);
  ASSERT_FALSE(table.operators.empty());
  EXPECT_EQ(table.operators.front().name, "aten::mm");
  EXPECT_EQ(table.operators.front().part, run::StepPart::recompute);
}

TEST(StepTable, CountsNumbersThatTheHostReads) {
  const run::StepTable table = run::step_table({mark(kMarkStep, 0, 100), op("aten::item", 0, 80),
                                                op("aten::_local_scalar_dense", 10, 70), op("aten::mul", 90, 95)});
  EXPECT_EQ(table.calls, 2);
  EXPECT_EQ(table.reads, 1);
}

TEST(StepTable, IsTheMeanOfItsStepsAndLeavesOutWhatIsBetweenThem) {
  const run::StepTable table =
      run::step_table({mark(kMarkStep, 0, 100), op("aten::mm", 0, 80), op("aten::mm", 150, 250),
                       mark(kMarkStep, 300, 500), op("aten::mm", 300, 340)});
  EXPECT_EQ(table.steps, 2);
  EXPECT_NEAR(table.step_seconds, 150e-9, 1e-15);
  EXPECT_EQ(host(table, run::StepPart::forward), 60);
  ASSERT_EQ(table.operators.size(), 1U);
  EXPECT_EQ(table.operators[0].calls, 1);
}

TEST(StepTable, CountsTheWorkOfADeviceForThePartThatLaunchedIt) {
  const run::StepTable table = run::step_table({
      mark(kMarkStep, 0, 1000),
      op("aten::mm", 0, 10, 1),
      op("aten::copy_", 20, 30, 2),
      node(kRecompute, 100, 200),
      op("aten::mm", 110, 120, 3),
      op("aten::mm", 1100, 1200, 4),  // after the step
      kernel(100, 400, 1),
      kernel(300, 500, 2, run::SpanKind::copy),  // beside it, on another stream
      kernel(600, 900, 3),
      kernel(1300, 1400, 4),
      kernel(1500, 1600, 0),
  });
  ASSERT_TRUE(table.has_device());
  EXPECT_EQ(device(table, run::StepPart::forward), 300);
  EXPECT_EQ(device(table, run::StepPart::copies), 200);
  EXPECT_EQ(device(table, run::StepPart::recompute), 300);
  EXPECT_NEAR(table.device_busy_seconds, 700e-9, 1e-15);
  EXPECT_EQ(table.operators.front().name, "aten::mm");
  EXPECT_NE(run::describe(table).find("idle"), std::string::npos);
}

TEST(StepTable, IsEmptyWithoutAStep) { EXPECT_EQ(run::step_table({op("aten::mm", 0, 10)}).steps, 0); }

}  // namespace
}  // namespace trainer::execution
