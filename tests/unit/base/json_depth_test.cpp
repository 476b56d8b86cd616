/// @file The limit on brackets in brackets, which every reader of a JSON file asks before it parses.
#include <base/json_depth.hpp>

#include <gtest/gtest.h>
#include <trainer/sdk/error.hpp>

namespace trainer {
namespace {

std::string nested(int levels) {
  const auto count = static_cast<std::size_t>(levels);
  return std::string(count, '[') + "1" + std::string(count, ']');
}

TEST(JsonDepth, TheLastLevelThatIsTakenAndTheFirstThatIsNot) {
  EXPECT_FALSE(nests_deeply(nested(kMostJsonLevels)));
  EXPECT_TRUE(nests_deeply(nested(kMostJsonLevels + 1)));
  EXPECT_FALSE(nests_deeply(""));
  const std::string ended("1\0", 2);  // the parser ends there
  EXPECT_FALSE(nests_deeply(ended + nested(kMostJsonLevels + 1)));
  std::string objects;
  for (int i = 0; i <= kMostJsonLevels; ++i) objects += "{\"a\":";
  EXPECT_TRUE(nests_deeply(objects)) << "whether they are closed or not";
}

TEST(JsonDepth, WhatIsClosedAgainDoesNotCount) {
  std::string flat = "[";
  for (int i = 0; i < 1000; ++i) flat += "[{}],";
  EXPECT_FALSE(nests_deeply(flat + "0]"));
}

TEST(JsonDepth, BracketsInStringsDoNotCount) {
  const std::string brackets(1000, '[');
  EXPECT_FALSE(nests_deeply("{\"" + brackets + "\": \"" + brackets + "\"}"));
  EXPECT_FALSE(nests_deeply(R"(["\")" + brackets + "\"]")) << "an escaped quotation mark ends no string";
  EXPECT_TRUE(nests_deeply(R"(["\\",)" + brackets)) << "after an escaped backslash it does";
  EXPECT_FALSE(nests_deeply("\"\\")) << "the end within an escape";
}

TEST(JsonDepth, ARefusalNamesTheFile) {
  EXPECT_NO_THROW(require_shallow(nested(kMostJsonLevels), "config.json"));
  try {
    require_shallow(nested(100'000), "m/config.json");
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::bad_input);
    EXPECT_EQ(error.code(), "JSON_DEPTH");
    EXPECT_STREQ(error.what(), "m/config.json: its JSON is nested deeper than 64 levels");
  }
}

}  // namespace
}  // namespace trainer
