#include "fixture.hpp"

#include <algorithm>

/// @file Texts made to break the reader: each must end in an error message, none in a crash.

namespace trainer::recipe {
namespace {

std::string repeated(const std::string& text, std::size_t count) {
  std::string out;
  out.reserve(text.size() * count);
  for (std::size_t i = 0; i < count; ++i) out += text;
  return out;
}

TEST_F(RecipeTest, DeepNestingIsRefused) {
  for (const std::string& text : {repeated("a.", 500'000) + "a = 1", "[" + repeated("a.", 500'000) + "a]",
                                  "x = { " + repeated("a . ", 200'000) + "b = 1 }"}) {
    write("recipe.toml", text);
    EXPECT_EQ(message_of("recipe.toml"), "recipe.toml:1:1: a key has more than 16 dots");
  }
  for (const std::string& text : {"a = " + repeated("[", 500'000), "a = " + repeated("{a=", 300'000)}) {
    write("recipe.toml", text);
    EXPECT_TRUE(message_of("recipe.toml").starts_with("recipe.toml:1:")) << message_of("recipe.toml").substr(0, 200);
  }
  // As deep as it is allowed: every level of values with the longest key.
  const std::string key = repeated("a.", 16) + "a";
  write("recipe.toml", "[x]\n" + repeated(key + " = {", 250) + repeated("}", 250));
  const std::string message = message_of("recipe.toml");
  EXPECT_TRUE(message.ends_with(": tables and lists are nested more than 64 levels deep")) << message.substr(0, 200);
}

TEST_F(RecipeTest, DotsInStringsAndCommentsAreNoKeys) {
  const std::string dots = repeated("a.", 100);
  const Recipe recipe = load_text("# " + dots + "\n" + kMinimal + "trigger = \"" + dots + "\"\ncaption = '''\n" + dots +
                                  "'\n'''\n[sample]\nprompts = ['" + dots + "', \"\"\"\\\"" + dots + "\"\"\"]\n");
  EXPECT_EQ(recipe.data[0].trigger, dots);
  EXPECT_EQ(recipe.data[0].caption, dots + "'\n");
  EXPECT_EQ(recipe.sample.prompts, (std::vector<std::string>{dots, "\"" + dots}));
}

TEST_F(RecipeTest, SizeAndBytes) {
  write("recipe.toml", std::string(kMinimal) + "# " + std::string(1 << 20, 'x'));
  EXPECT_EQ(message_of("recipe.toml", {}, false, ExitCode::bad_input),
            "recipe recipe.toml is larger than 1048576 bytes");
  write("recipe.toml", "[run]\nname = \"\xff\xfe\"\n");
  EXPECT_TRUE(message_of("recipe.toml").starts_with("recipe.toml:2:")) << message_of("recipe.toml");
  write("recipe.toml", std::string("[run]\nname = \"a\0b\"\n", 19));
  EXPECT_TRUE(message_of("recipe.toml").starts_with("recipe.toml:2:")) << message_of("recipe.toml");
  write("recipe.toml", std::string(kMinimal) + "trigger = \"a\\u0000b\"\n");
  EXPECT_EQ(message_of("recipe.toml"), "recipe.toml:9:11: data.0.trigger: the text holds a NUL character");
  write("recipe.toml", "[run]\nsteps = 99999999999999999999\n");
  EXPECT_TRUE(message_of("recipe.toml").starts_with("recipe.toml:2:")) << message_of("recipe.toml");
  write("recipe.toml", "\xef\xbb\xbf" + std::string(kMinimal));
  EXPECT_EQ(load_file("recipe.toml").model.path, here("m")) << "a byte order mark is no mistake";
  write("recipe.toml", "[run]\nseed = 1\nseed = 2\n");
  EXPECT_TRUE(message_of("recipe.toml").starts_with("recipe.toml:3:8: not valid TOML: ")) << message_of("recipe.toml");
}

TEST_F(RecipeTest, ManyMistakesAreCounted) {
  std::string text = kMinimal;
  text += "[train]\n";
  for (int i = 0; i < 60; ++i) text += "zz" + std::to_string(i) + "qq = 1\n";
  write("recipe.toml", text);
  const std::string message = message_of("recipe.toml");
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 50);
  EXPECT_TRUE(message.ends_with("\nand 10 more mistakes"));
}

/// Every prefix and every single changed byte of a recipe gives a recipe or a clean error.
TEST_F(RecipeTest, DamagedTextsNeverCrash) {
  const std::string text = std::string(kMinimal) +
                           "[adapter]\nrank = 4\nalpha = 2.5\n[objective]\ntimesteps = { shift = 3.0 }\n"
                           "[memory]\nstrategies = [\"selective_checkpointing\"]\n";
  std::size_t good = 0, bad = 0;
  const auto attempt = [&](const std::string& damaged) {
    try {
      load_text(damaged);
      ++good;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::bad_recipe);
      EXPECT_FALSE(std::string(error.what()).empty());
      ++bad;
    }
  };
  for (std::size_t size = 0; size < text.size(); size += 3) attempt(text.substr(0, size));
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (const char replacement : {'\0', '"', '[', '}', '=', '\xff'}) {
      std::string damaged = text;
      damaged[at] = replacement;
      attempt(damaged);
    }
  }
  EXPECT_GT(good, 10U);
  EXPECT_GT(bad, 500U);
}

}  // namespace
}  // namespace trainer::recipe
