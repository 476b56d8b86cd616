/// @file Patterns with stars.
#include <gtest/gtest.h>
#include <trainer/sdk/names.hpp>

#include <chrono>

namespace trainer {
namespace {

TEST(Glob, StarsStandForAnyText) {
  struct Case {
    const char *pattern, *text;
    bool matches;
  };
  for (const Case& one : {Case{"", "", true},
                          {"", "a", false},
                          {"*", "", true},
                          {"*", "anything", true},
                          {"**", "x", true},
                          {"a", "a", true},
                          {"a", "ab", false},
                          {"a", "ba", false},
                          {"a*", "a", true},
                          {"a*", "abc", true},
                          {"*a", "cba", true},
                          {"*a", "ab", false},
                          {"a*c", "ac", true},
                          {"a*c", "abcbc", true},
                          {"a*c", "abcb", false},
                          {"*.attn.*", "blocks.1.attn.to_q", true},
                          {"*.attn.*", "blocks.1.attn", false},
                          {"*ab*ab*", "abab", true},
                          {"*ab*ab*", "aba", false},
                          {"*aab", "aaab", true},
                          {"?[a].x", "?[a].x", true},
                          {"?", "x", false},
                          {"a\\*", "a\\b", true}})
    EXPECT_EQ(matches_glob(one.pattern, one.text), one.matches) << one.pattern << " on " << one.text;
}

/// By every way to cut the text at the first star: slow, and obviously right.
bool by_definition(std::string_view pattern, std::string_view text) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == text;
  if (text.substr(0, star) != pattern.substr(0, star)) return false;
  for (std::size_t begin = star; begin <= text.size(); ++begin)
    if (by_definition(pattern.substr(star + 1), text.substr(begin))) return true;
  return false;
}

/// Every pattern of up to 5 and every text of up to 6 characters out of few.
TEST(Glob, AgreesWithItsDefinition) {
  const auto texts = [](const std::string& alphabet, std::size_t longest) {
    std::vector<std::string> list{""};
    for (std::size_t i = 0; i < list.size(); ++i)
      if (list[i].size() < longest)
        for (const char c : alphabet) list.push_back(list[i] + c);
    return list;
  };
  const std::vector<std::string> subjects = texts("ab", 6);
  for (const std::string& pattern : texts("ab*", 5))
    for (const std::string& text : subjects)
      ASSERT_EQ(matches_glob(pattern, text), by_definition(pattern, text)) << pattern << " on " << text;
}

/// What takes a backtracking matcher longer than the age of the universe.
TEST(Glob, ManyStarsOnALongText) {
  std::string pattern;
  for (int i = 0; i < 1000; ++i) pattern += "*a";
  const std::string text(100'000, 'a');
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(matches_glob(pattern + "*b", text));
  EXPECT_TRUE(matches_glob(pattern, text));
  EXPECT_TRUE(matches_glob(pattern + "*b", text + "b"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
}

}  // namespace
}  // namespace trainer
