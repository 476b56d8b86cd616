#include <base/units.hpp>

#include <gtest/gtest.h>

namespace trainer {
namespace {

TEST(Units, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(999.6), "1.0 kB");
  EXPECT_EQ(format_bytes(1.5e9), "1.5 GB");
  EXPECT_EQ(format_bytes(64'400'000'000.), "64.4 GB");
  EXPECT_EQ(format_bytes(123'456'789), "123 MB");
  EXPECT_EQ(format_bytes(999'999'999), "1.0 GB");
  EXPECT_EQ(format_bytes(-2500), "-2.5 kB");
}

TEST(Units, Flops) {
  EXPECT_EQ(format_flops(0), "0 FLOP");
  EXPECT_EQ(format_flops(14.2e6), "14.2 MFLOP");
  EXPECT_EQ(format_flops(521.8e12), "522 TFLOP");
}

TEST(Units, Seconds) {
  EXPECT_EQ(format_seconds(0.0761), "0.076 s");
  EXPECT_EQ(format_seconds(2.54), "2.5 s");
  EXPECT_EQ(format_seconds(12.4), "12 s");
  EXPECT_EQ(format_seconds(59.6), "1 min 00 s");
  EXPECT_EQ(format_seconds(200), "3 min 20 s");
  EXPECT_EQ(format_seconds(7500), "2 h 05 min");
}

TEST(Units, ParseBytes) {
  EXPECT_EQ(parse_bytes("22GB"), 22'000'000'000);
  EXPECT_EQ(parse_bytes("22 GB"), 22'000'000'000);
  EXPECT_EQ(parse_bytes("512mb"), 512'000'000);
  EXPECT_EQ(parse_bytes("24GiB"), 25'769'803'776);
  EXPECT_EQ(parse_bytes("1.5 kB"), 1500);
  EXPECT_EQ(parse_bytes("7 B"), 7);
  for (const char* bad :
       {"", "GB", "22", "22  GB", "-1 GB", "1e3 GB", "nan GB", "22 GBs", "22 XB", " 1GB", "99999999TB"}) {
    EXPECT_EQ(parse_bytes(bad), std::nullopt) << bad;
  }
}

TEST(Units, Count) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(1234567), "1,234,567");
  EXPECT_EQ(format_count(-123456), "-123,456");
}

}  // namespace
}  // namespace trainer
