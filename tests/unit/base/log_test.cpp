#include <base/log.hpp>

#include <gtest/gtest.h>

#include <regex>

namespace trainer {
namespace {

TEST(Log, PlainLinesOnStderr) {
  testing::internal::CaptureStderr();
  log(LogLevel::debug, "hidden");
  log_info("braces {} and 100 % stay");
  log_warning("careful");
  log_warning("a\x1b[2J\xff\nb");
  set_log_level(LogLevel::error);
  log_warning("hidden");
  log(LogLevel::error, "broken");
  set_log_level(LogLevel::debug);
  log(LogLevel::debug, "shown");
  set_log_level(LogLevel::info);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::regex_replace(text, std::regex(R"(\d\d:\d\d:\d\d )"), "T "),
            "T info    braces {} and 100 % stay\nT warning careful\nT warning a\\x1b[2J\\xff\nb\nT error   broken\nT "
            "debug   shown\n");
}

}  // namespace
}  // namespace trainer
