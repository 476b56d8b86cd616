#include <metrics/meter.hpp>

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <vector>

namespace trainer::metrics {
namespace {

TEST(SmoothedMean, FirstValueCountsFullyThenThePastFades) {
  SmoothedMean mean{0.5};
  EXPECT_TRUE(std::isnan(mean.value()));
  mean.add(4);
  EXPECT_DOUBLE_EQ(mean.value(), 4);
  mean.add(1);
  EXPECT_DOUBLE_EQ(mean.value(), (0.5 * 2 + 0.5 * 1) / 0.75);
  mean.add(std::nan(""));
  mean.add(std::numeric_limits<double>::infinity());
  EXPECT_DOUBLE_EQ(mean.value(), 2);
}

TEST(SmoothedMean, GoesOnFromItsNumbers) {
  SmoothedMean whole, first;
  for (int i = 0; i < 50; ++i) whole.add(i * i), i < 20 ? first.add(i * i) : void();
  SmoothedMean resumed{first.smoothing, first.sum, first.weight};
  for (int i = 20; i < 50; ++i) resumed.add(i * i);
  EXPECT_EQ(resumed.value(), whole.value());
}

TEST(Throughput, SmoothsSecondsAndForecasts) {
  const Throughput::Clock::time_point start{};
  Throughput throughput(start);
  EXPECT_TRUE(std::isnan(throughput.seconds_per_step()));
  throughput.step_done(start + std::chrono::seconds(4));
  EXPECT_DOUBLE_EQ(throughput.seconds_per_step(), 4);
  EXPECT_TRUE(std::isnan(throughput.seconds_left(10)));  // the first step is no measure of the others
  throughput.step_done(start + std::chrono::seconds(5));
  EXPECT_DOUBLE_EQ(throughput.last_seconds(), 1);
  EXPECT_DOUBLE_EQ(throughput.seconds_per_step(), 1);
  throughput.step_done(start + std::chrono::seconds(7));
  EXPECT_DOUBLE_EQ(throughput.seconds_per_step(), (0.9 * 0.1 * 1 + 0.1 * 2) / 0.19);
  EXPECT_DOUBLE_EQ(throughput.seconds_left(10), 10 * throughput.seconds_per_step());
}

TEST(MemoryUse, ReadsTheStatusOfAProcess) {
  const MemoryUse use =
      parse_memory_use("Name:\tx\nVmPeak:\t  99 kB\nVmHWM:\t  2048 kB\nVmRSS:\t    1000 kB\nThreads:\t1\n");
  EXPECT_EQ(use.resident, 1024000);
  EXPECT_EQ(use.peak, 2097152);
  EXPECT_EQ(parse_memory_use("").resident, 0);
  EXPECT_EQ(parse_memory_use("VmRSS:").resident, 0);
}

TEST(MemoryUse, WhatTheMachineHasLeft) {
  EXPECT_EQ(parse_available_memory("MemTotal:  9 kB\nMemFree:   5 kB\nMemAvailable:    1000 kB\n"), 1024000);
  EXPECT_EQ(parse_available_memory("MemTotal:  9 kB\n"), 0);
  EXPECT_GT(available_memory(), 1'000'000);
}

TEST(MemoryUse, AContainersLimitCounts) {
  namespace fs = std::filesystem;
  const fs::path root = fs::temp_directory_path() / ("trainer-groups-" + std::to_string(::getpid()));
  const auto write = [&](const fs::path& file, const std::string& text) {
    fs::create_directories((root / file).parent_path());
    std::ofstream(root / file) << text;
  };
  const std::string two = "1:name=systemd:/\n0::/box/inner\n", one = "9:cpu:/\n4:hugetlb,memory:/box\n0::/\n";
  EXPECT_EQ(available_in_groups(two, root), std::nullopt) << "no such tree";
  write("box/inner/memory.max", "max\n");
  write("box/inner/memory.current", "5000\n");
  EXPECT_EQ(available_in_groups(two, root), std::nullopt) << "no limit";
  write("box/memory.max", "10000\n");
  write("box/memory.current", "7000\n");
  EXPECT_EQ(available_in_groups(two, root), 3000) << "the limit of a group above";
  write("box/memory.stat", "anon 1\ninactive_file 500\nactive_file 9\n");
  EXPECT_EQ(available_in_groups(two, root), 3500) << "pages of files can be dropped";
  write("box/inner/memory.max", "6000\n");
  EXPECT_EQ(available_in_groups(two, root), 1000) << "the least";
  write("box/memory.current", "20000\n");
  EXPECT_EQ(available_in_groups(two, root), 0);
  EXPECT_EQ(available_in_groups("0::/elsewhere\n", root), std::nullopt);
  EXPECT_EQ(available_in_groups("4:memory:/box\n", root), std::nullopt);
  write("memory/box/memory.limit_in_bytes", "9223372036854771712\n");
  write("memory/box/memory.usage_in_bytes", "40\n");
  EXPECT_EQ(available_in_groups(one, root), std::nullopt) << "version 1 writes no limit as a large one";
  write("memory/memory.limit_in_bytes", "100\n");  // a container's own group, whose path is the host's
  write("memory/memory.usage_in_bytes", "60\n");
  write("memory/memory.stat", "inactive_file 1\ntotal_inactive_file 10\n");
  EXPECT_EQ(available_in_groups(one, root), 50);
  fs::remove_all(root);
}

TEST(MemoryUse, OfThisProcess) {
  const MemoryUse before = memory_use();
  EXPECT_GT(before.resident, 1'000'000);
  {
    const std::vector<char> block(64'000'000, 'x');
    EXPECT_EQ(block[63'999'999], 'x');
  }
  const MemoryUse after = memory_use();
  EXPECT_GE(after.peak - before.resident, 60'000'000);
}

}  // namespace
}  // namespace trainer::metrics
