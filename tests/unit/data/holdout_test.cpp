// Which samples are held out: whole sources, or a share that does not change with what else there is.
#include <gtest/gtest.h>
#include <data/holdout.hpp>
#include <support/errors.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>

namespace trainer::data {
namespace {

Sample sample(const std::string& content, std::size_t source = 0) {
  Sample made;
  made.file = content + ".png";
  made.content = content;
  made.source = source;
  return made;
}

Dataset dataset(int count, std::size_t source = 0) {
  Dataset made;
  for (int i = 0; i < count; ++i) made.samples.push_back(sample("picture " + std::to_string(i), source));
  return made;
}

recipe::Recipe recipe(double fraction, std::vector<bool> validation = {false}) {
  recipe::Recipe made;
  made.validation.fraction = fraction;
  for (const bool one : validation) made.data.emplace_back().validation = one;
  return made;
}

std::vector<std::string> held(const Dataset& all, const recipe::Recipe& recipe) {
  std::vector<std::string> names;
  for (const Sample& one : part_of(all, hold_out(all, recipe), true).samples) names.push_back(one.content);
  return names;
}

TEST(Holdout, TakesTheShare) {
  EXPECT_EQ(held(dataset(20), recipe(0.25)).size(), 5U);
  EXPECT_EQ(held(dataset(20), recipe(0.01)).size(), 1U) << "at least one";
  EXPECT_EQ(held(dataset(2), recipe(0.9)).size(), 1U) << "one is left";
  EXPECT_TRUE(held(dataset(20), recipe(0)).empty());
}

TEST(Holdout, TheChoiceHardlyChangesWithMorePictures) {
  const std::vector<std::string> few = held(dataset(40), recipe(0.25)), more = held(dataset(44), recipe(0.25));
  std::size_t both = 0;
  for (const std::string& name : few) both += std::count(more.begin(), more.end(), name);
  EXPECT_GE(both, 8U) << "of 10";
}

TEST(Holdout, TheSeedDecidesAndTheOrderDoesNot) {
  Dataset all = dataset(40);
  const std::vector<std::string> first = held(all, recipe(0.25));
  recipe::Recipe other = recipe(0.25);
  other.validation.seed = 1;
  EXPECT_NE(held(all, other), first);
  std::reverse(all.samples.begin(), all.samples.end());
  std::vector<std::string> reversed = held(all, recipe(0.25));
  std::reverse(reversed.begin(), reversed.end());
  EXPECT_EQ(reversed, first);
}

TEST(Holdout, CopiesStayOnOneSide) {
  Dataset all = dataset(10);
  for (int i = 0; i < 10; ++i) all.samples.push_back(sample("picture " + std::to_string(i), 1));
  const Holdout holdout = hold_out(all, recipe(0.3, {false, false}));
  for (std::size_t i = 0; i < 10; ++i) EXPECT_EQ(holdout.held[i], holdout.held[i + 10]) << i;
  EXPECT_EQ(std::count(holdout.held.begin(), holdout.held.end(), true), 6);
  EXPECT_TRUE(holdout.notes.empty());
}

TEST(Holdout, AWholeSourceAndAShareOfTheOthers) {
  Dataset all = dataset(10);
  all.samples.push_back(sample("other", 1));
  all.samples.push_back(sample("picture 3", 1));
  EXPECT_EQ(held(all, recipe(0, {false, true})), (std::vector<std::string>{"other", "picture 3"}));
  const Holdout holdout = hold_out(all, recipe(0, {false, true}));
  ASSERT_EQ(holdout.notes.size(), 1U) << "it is trained on, too";
  EXPECT_NE(holdout.notes[0].find("picture 3.png"), std::string::npos);
  EXPECT_EQ(part_of(all, holdout, false).samples.size(), 10U);
  EXPECT_EQ(held(all, recipe(0.2, {false, true})).size(), 4U);
}

TEST(Holdout, NothingLeftToTrainOnIsRefused) {
  EXPECT_NE(test::message_of([] { hold_out(dataset(1), recipe(0.5)); }).find("1 different sample(s)"),
            std::string::npos);
}

}  // namespace
}  // namespace trainer::data
