/// @file What `save` and `blocks` of a recipe accept, and what they say to everything else.
#include <block_choice.hpp>

#include "chain.hpp"

namespace trainer::test {
namespace {

using selective::BlockChoice;
using selective::SaveList;
using Strings = std::vector<std::string>;

HeavyOp op(const std::string& type, const std::string& name, int64_t index, int64_t position) {
  return {type, name, "()", index, position, 1};
}

std::string save_error(const std::string& entry) {
  return error_of([&] { SaveList({entry}); });
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(SaveNames, AnUnknownNameIsRefusedWithTheNearest) {
  const std::string message = save_error("every_second_matmull");
  EXPECT_TRUE(contains(message, "memory.selective_checkpointing.save: \"every_second_matmull\" is no preset, operator"))
      << message;
  EXPECT_TRUE(contains(message, "every_second_matmul\"")) << message;
  EXPECT_TRUE(contains(save_error("atention"), "\"attention\"")) << save_error("atention");
  EXPECT_TRUE(contains(save_error("single:frozen_linaer#1"), "\"frozen_linear\""));
}

TEST(SaveNames, RandomOperatorsAreRefused) {
  for (const char* name : {"bernoulli", "native_dropout", "randn", "toy:dropout#0"})
    EXPECT_TRUE(contains(save_error(name), "random operators cannot be kept")) << name;
  EXPECT_FALSE(contains(save_error("mmm"), "random"));
}

TEST(BadInputs, MalformedCallsAreRefused) {
  for (const char* name : {"", ":", "#", ":mm#0", "toy:mm", "toy:mm#", "toy:mm#x", "toy:mm#-1", "toy:#0",
                           "toy:matmul#0", "toy:mm#0#1", "toy:mm#9999999999", "mm#0", "toy: mm#0", "MM", "toy:mm#1 "})
    EXPECT_NE(save_error(name), "") << name;
  try {
    SaveList({"x"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::bad_recipe);
  }
}

TEST(SaveNames, WhatMatchedNothingIsReportedAfterTheFirstStep) {
  SaveList save({"mm", "attention"});
  EXPECT_TRUE(save.keep(op("toy", "mm", 0, 0)));
  EXPECT_FALSE(save.keep(op("toy", "bmm", 0, 1)));
  EXPECT_EQ(
      error_of([&] { save.require_all_matched(); }),
      "memory.selective_checkpointing.save: \"attention\" matches no operation of this model; its heavy operations "
      "are toy:mm#0, toy:bmm#0");
  SaveList call({"single:mm#2"});
  call.keep(op("double", "mm", 2, 0));
  call.keep(op("single", "mm", 1, 0));
  EXPECT_TRUE(contains(error_of([&] { call.require_all_matched(); }), "\"single:mm#2\" matches no operation"));
  EXPECT_TRUE(call.keep(op("single", "mm", 2, 1)));
  call.require_all_matched();
}

TEST(PolicyWithState, EverySecondMatmulCountsAnewInEachBlock) {
  SaveList save({"every_second_matmul"});
  for (int block = 0; block < 3; ++block) {
    EXPECT_FALSE(save.keep(op("toy", "mm", 0, 0)));
    EXPECT_FALSE(save.keep(op("toy", Chain::kAttention, 0, 1)));
    EXPECT_TRUE(save.keep(op("toy", "addmm", 0, 2)));
    EXPECT_FALSE(save.keep(op("toy", "frozen_linear", 0, 3)));
  }
  for (int block = 0; block < 3; ++block) EXPECT_FALSE(save.keep(op("toy", "mm", 0, 0)));
}

Site site(const Block& block, int64_t index, int64_t count) { return {&block, index, count, 0}; }
Value text(const std::string& value) { return {value}; }
Value list(const Strings& items) {
  Array array;
  for (const std::string& item : items) array.push_back({item});
  return {array};
}

std::string pattern_of(const Value& value, int64_t count) {
  BlockChoice choice(value);
  const LambdaBlock block("b");
  std::string pattern;
  for (int64_t i = 0; i < count; ++i) pattern += choice.recomputed(site(block, i, count)) ? 'r' : '.';
  return pattern;
}

TEST(Blocks, EveryNLeavesTheLastOnesUnchecked) {
  EXPECT_EQ(pattern_of(text("all"), 6), "rrrrrr");
  EXPECT_EQ(pattern_of(text("every 2"), 6), "rrr...");
  EXPECT_EQ(pattern_of(text("every 2"), 5), "rrr..");
  EXPECT_EQ(pattern_of(text("every 3"), 6), "rrrr..");
  EXPECT_EQ(pattern_of(text("every 6"), 6), "rrrrr.");
}

TEST(Blocks, OtherTextsAreRefused) {
  for (const char* bad : {"every 1", "every 0", "every -2", "every 2.5", "every", "every ", "every two", "every 2 ",
                          "every  2", "every 99999999999999999999", "", "none", "All"})
    EXPECT_EQ(error_of([&] { BlockChoice{text(bad)}; }),
              "memory.selective_checkpointing.blocks: \"" + std::string(bad) +
                  "\" is neither \"all\", nor \"every N\" with N of 2 or more, nor a list of block names");
}

TEST(Blocks, AnEmptyListIsRefused) {
  EXPECT_NE(error_of([] { BlockChoice{list({})}; }), "");
}

TEST(Blocks, EveryNMustLeaveABlockOut) {
  BlockChoice choice(text("every 7"));
  const LambdaBlock block("b");
  EXPECT_TRUE(choice.recomputed(site(block, 5, 6)));
  EXPECT_NE(error_of([&] { choice.require_all_matched(); }), "");
}

TEST(Blocks, PatternsChooseByNameAndMustMatch) {
  BlockChoice choice(list({"double.*", "single.1", "*.last", "sngle.*"}));
  const auto chosen = [&](const char* name) {
    const LambdaBlock block(name);
    return choice.recomputed(site(block, 0, 9));
  };
  EXPECT_TRUE(chosen("double.0"));
  EXPECT_TRUE(chosen("single.1"));
  EXPECT_FALSE(chosen("single.10"));
  EXPECT_TRUE(chosen("a.b.last"));
  EXPECT_FALSE(chosen("xdouble.0"));
  EXPECT_EQ(
      error_of([&] { choice.require_all_matched(); }),
      "memory.selective_checkpointing.blocks: \"sngle.*\" matches no block that takes part in training (did you mean "
      "\"single.1\" or \"single.10\"?); these are double.0 to xdouble.0");
}

}  // namespace
}  // namespace trainer::test
