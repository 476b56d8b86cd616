// The pieces below the tokenizer: UTF-8, regular expressions, the byte alphabet.
#include <gtest/gtest.h>
#include <text/pre_tokenizer.hpp>
#include <text/regex.hpp>
#include <text/utf8.hpp>
#include <trainer/sdk/error.hpp>

namespace trainer::text {
namespace {

TEST(Utf8, ReplacesEachMaximalIllFormedPart) {
  const std::string bad = "\uFFFD";
  EXPECT_EQ(replace_invalid_utf8("a\u00e9\u20ac\U0001F98A"), "a\u00e9\u20ac\U0001F98A");
  EXPECT_EQ(replace_invalid_utf8("\xE2\x82"), bad);                            // the start of a longer one
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\xA6z"), bad + "z");                 // three of four bytes
  EXPECT_EQ(replace_invalid_utf8("\xE0\x80\x80"), bad + bad + bad);            // overlong
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), bad + bad + bad);            // surrogate
  EXPECT_EQ(replace_invalid_utf8("\xF4\x90\x80\x80"), bad + bad + bad + bad);  // beyond U+10FFFF
  EXPECT_EQ(replace_invalid_utf8("\x80x\xFF"), bad + "x" + bad);
}

TEST(Utf8, NormalForms) {
  const std::string text = "\u00e9 e\u0301 \ufb01 \u212b \u1100\u1161";
  EXPECT_EQ(normalise(text, NormalForm::nfc), "\u00e9 \u00e9 \ufb01 \u00c5 \uac00");
  EXPECT_EQ(normalise(text, NormalForm::nfd), "e\u0301 e\u0301 \ufb01 A\u030a \u1100\u1161");
  EXPECT_EQ(normalise(text, NormalForm::nfkc), "\u00e9 \u00e9 fi \u00c5 \uac00");
  EXPECT_EQ(normalise(text, NormalForm::nfkd), "e\u0301 e\u0301 fi A\u030a \u1100\u1161");
  EXPECT_EQ(normalise(std::string_view("e\u0301\0z", 5), NormalForm::nfc), std::string("\u00e9\0z", 4));
  EXPECT_EQ(normalise("a\u0301\u0327\u0301", NormalForm::nfc), "\u00e1\u0327\u0301");  // marks are put in order
}

TEST(Utf8, Classes) {
  for (const int32_t space : {0x09, 0x20, 0x85, 0xA0, 0x1680, 0x2003, 0x2028, 0x3000})
    EXPECT_TRUE(is_space(space)) << space;
  for (const int32_t other : {0x180E, 0x200B, 0xFEFF, int32_t{'a'}}) EXPECT_FALSE(is_space(other)) << other;
  for (const int32_t word : {int32_t{'_'}, int32_t{'7'}, 0xE9, 0x301, 0x200D, 0x24D0, 0x2160})
    EXPECT_TRUE(is_word(word)) << word;
  for (const int32_t other : {int32_t{'-'}, 0xB2, 0x2460, 0x20AC}) EXPECT_FALSE(is_word(other)) << other;
}

std::vector<std::string> split(const Regex& regex, std::string_view text) {
  std::vector<std::string> parts;
  for (const Span& span : regex.split(text))
    parts.push_back((span.is_match ? "+" : "-") + std::string(text.substr(span.begin, span.end - span.begin)));
  return parts;
}

using Parts = std::vector<std::string>;

TEST(RegexSplit, GivesMatchesAndGapsInOrder) {
  EXPECT_EQ(split(Regex::compile(R"(\p{L}+)"), "1stra\u00dfe2 x"), (Parts{"-1", "+stra\u00dfe", "-2 ", "+x"}));
  EXPECT_EQ(split(Regex::compile(R"(\s+(?!\S)|\s+)"), "a   b \n"), (Parts{"-a", "+  ", "+ ", "-b", "+ \n"}));
  EXPECT_EQ(split(Regex::compile("(?i:'s)"), "it'S '\u017f"), (Parts{"-it", "+'S", "- ", "+'\u017f"}));
  EXPECT_EQ(split(Regex::literal("a.c"), "abca.c"), (Parts{"-abc", "+a.c"}));
  EXPECT_EQ(split(Regex::compile("x"), ""), Parts{});
}

TEST(RegexSplit, SpacesAndWordsAreThoseOfOniguruma) {
  EXPECT_EQ(
      translate_oniguruma(R"(\s[^\s\]]\S\w)"),
      R"([\p{Z}\x{09}-\x{0D}\x{85}][^\p{Z}\x{09}-\x{0D}\x{85}\]][^\p{Z}\x{09}-\x{0D}\x{85}][\p{L}\p{M}\p{Nd}\p{Pc}])");
  EXPECT_EQ(split(Regex::compile(R"(\s)"), "\u180e\u0085\u3000"), (Parts{"-\u180e", "+\u0085", "+\u3000"}));
  EXPECT_EQ(split(Regex::compile(R"(\w+)"), "a\u0301\u203f-\u00b2"), (Parts{"+a\u0301\u203f", "--\u00b2"}));
}

TEST(RegexSplit, RefusesWhatTheLibrariesReadDifferently) {
  const auto refusal = [](std::string_view pattern) -> std::string {
    try {
      (void)Regex::compile(pattern);
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), "TOK_REGEX");
      return error.what();
    }
  };
  const std::string tail = " (regex libraries disagree about it)";
  EXPECT_EQ(refusal("[a-z&&[^b]]"),
            "regular expression \"[a-z&&[^b]]\", offset 4: not supported: an intersection of classes" + tail);
  EXPECT_EQ(refusal("x[a[bc]]"),
            "regular expression \"x[a[bc]]\", offset 3: not supported: a class inside a class" + tail);
  EXPECT_EQ(refusal("^a"), "regular expression \"^a\", offset 0: not supported: line anchors" + tail);
  EXPECT_EQ(refusal(R"(a[\W])"),
            "regular expression \"a[\\W]\", offset 2: not supported: \\W inside a character class" + tail);
  EXPECT_EQ(refusal("a\\"), "regular expression \"a\\\", offset 1: ends in a backslash");
  EXPECT_EQ(refusal("[[:alpha:]]|[]^$]"), "");
}

TEST(ByteAlphabet, MapsEveryByteAndBack) {
  EXPECT_EQ(to_byte_alphabet(" a\n\u00e9"), "\u0120a\u010a\u00c3\u00a9");
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  EXPECT_EQ(from_byte_alphabet(to_byte_alphabet(bytes)), bytes);
  EXPECT_EQ(from_byte_alphabet("two words"), "two words");  // a space is no letter of the alphabet
}

}  // namespace
}  // namespace trainer::text
