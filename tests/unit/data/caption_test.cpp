#include <data/caption.hpp>

#include "helpers.hpp"

namespace trainer::data {
namespace {

using namespace std::string_literals;

std::string refusal(const std::string& bytes) {
  return message_of([&] { clean_caption(bytes); });
}

TEST(Caption, DropsMarkLineEndsAndTrailingSpaceOnly) {
  EXPECT_EQ(clean_caption("\xEF\xBB\xBF a fox\r\nin snow\ron ice \t\r\n\n"), " a fox\nin snow\non ice");
  EXPECT_EQ(clean_caption("\xEF\xBB\xBF\xEF\xBB\xBF"
                          "fox"),
            "fox");
  EXPECT_EQ(clean_caption(""), "");
  EXPECT_EQ(clean_caption("\n"), "");
  EXPECT_EQ(clean_caption("caf\xC3\xA9\t\xF0\x9F\xA6\x8A"), "caf\xC3\xA9\t\xF0\x9F\xA6\x8A");
  EXPECT_EQ(clean_caption("a\r\r\nb"), "a\n\nb");
}

TEST(Caption, RefusesWhatIsNotUtf8WithTheOffset) {
  EXPECT_EQ(refusal("caf\xE9 au lait"), "is not UTF-8 at byte 3");
  EXPECT_EQ(refusal("\xEF\xBB\xBF"
                    "a\xFF"),
            "is not UTF-8 at byte 4");
  EXPECT_EQ(refusal("\xED\xA0\x80"), "is not UTF-8 at byte 0");  // a surrogate
  EXPECT_EQ(refusal("\xC0\xAF"), "is not UTF-8 at byte 0");      // overlong
  EXPECT_EQ(refusal("\xFF\xFE"
                    "a\0"s),
            "is not UTF-8 at byte 0");  // UTF-16
}

TEST(Caption, RefusesControlCharacters) {
  EXPECT_EQ(refusal("a\0b"s), "has the control character U+0000 at byte 1");
  EXPECT_EQ(refusal("ab\x1B[31m"), "has the control character U+001B at byte 2");
  EXPECT_EQ(refusal("\x7F"), "has the control character U+007F at byte 0");
  EXPECT_EQ(refusal("x\xC2\x85"), "has the control character U+0085 at byte 1");
  EXPECT_EQ(clean_caption("x\xC2\xA0y"), "x\xC2\xA0y");  // U+00A0 is no control character
}

TEST(Caption, HasALimit) {
  EXPECT_EQ(clean_caption(std::string(kMaxCaptionBytes, 'a')).size(), 65536U);
  EXPECT_EQ(refusal(std::string(kMaxCaptionBytes + 1, 'a')), "is longer than 65536 bytes");
}

TEST(Caption, TriggerComesFirstOnce) {
  EXPECT_EQ(with_trigger("sks dog", "on a beach"), "sks dog, on a beach");
  EXPECT_EQ(with_trigger("sks dog", "a sks dog on a beach"), "a sks dog on a beach");
  EXPECT_EQ(with_trigger("sks dog", ""), "sks dog");
  EXPECT_EQ(with_trigger("", "on a beach"), "on a beach");
  EXPECT_EQ(with_trigger("caf\u00e9", "a cafe\u0301"), "a cafe\u0301") << "one word in two Unicode forms";
  EXPECT_EQ(with_trigger("cafe\u0301", "a caf\u00e9"), "a caf\u00e9");
  EXPECT_EQ(with_trigger("cafe", "a cafe\u0301"), "cafe, a cafe\u0301") << "another word";
  EXPECT_EQ(with_trigger("a\xff", "b a\xff"), "b a\xff") << "no UTF-8: byte by byte";
}

}  // namespace
}  // namespace trainer::data
